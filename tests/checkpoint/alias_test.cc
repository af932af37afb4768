// One memory under two names: written once, known under both.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/log.h"
#include "checkpoint/diff.h"
#include "checkpoint/drill.h"
#include "checkpoint/export.h"
#include "checkpoint/inspect.h"
#include "checkpoint/safetensors.h"
#include "storage/recording_files.h"
#include "support.h"

namespace perdure {
namespace {

using ::testing::HasSubstr;

// "embedding" [6, 4], and "head", which is the same memory or a copy.
struct Tied final : Stateful {
  explicit Tied(bool is_tied) : tied(is_tied), embedding(24), head(24) {}

  void Set(float first) {
    std::iota(embedding.begin(), embedding.end(), always.value_or(first));
    std::iota(head.begin(), head.end(), always.value_or(first));
    if (head_7.has_value()) head[7] = *head_7;
  }
  TensorEntry Entry(const std::string& name, std::vector<float>& values) const {
    TensorEntry entry;
    entry.name = name;
    entry.view.data = values.data();
    entry.view.shape = {6, 4};
    entry.holders = holders;
    return entry;
  }
  Result<State> Describe() override {
    State state;
    state.tensors.push_back(Entry("embedding", embedding));
    if (with_head) state.tensors.push_back(Entry("head", tied ? embedding : head));
    if (with_transposed) {
      state.tensors.push_back(Entry("transposed", embedding));
      state.tensors.back().view.shape = {4, 6};
      state.tensors.back().view.strides = {1, 4};
    }
    return state;
  }

  const bool tied;
  Holders holders = Holders::kReplicated;
  bool with_head = true;
  bool with_transposed = false;
  std::optional<float> always;  // whatever the step
  std::optional<float> head_7;  // where `head` is no copy
  std::vector<float> embedding;
  std::vector<float> head;
};

class AliasTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { Log().set_level(spdlog::level::off); }

  // One generation; `states`: one per rank. Saves `step` when it is not negative.
  Status Run(const std::vector<Tied*>& states, std::int64_t step) {
    const auto claimed =
        CheckpointEngine::ClaimNext(files_, "/root", "toy", Generation(1), RealClock());
    PERDURE_RETURN_IF_ERROR(claimed.status());
    const int world = static_cast<int>(states.size());
    Board board;
    std::barrier done(world);
    Mutex mutex;
    Status all;
    RunRanks(world, [&](int r) {
      MemoryGroup group(board, Rank(r), world, *claimed);
      CheckpointOptions options = ToyOptions("/root");
      options.async_save = false;
      std::unique_ptr<CheckpointEngine> engine;
      const auto run = [&]() -> Status {
        PERDURE_ASSIGN_OR_RETURN(
            engine, CheckpointEngine::Open(options, group, files_, RealClock(), {}, In(30)));
        engine->Add("model", *states[static_cast<std::size_t>(r)]);
        PERDURE_RETURN_IF_ERROR(engine->Restore().status());
        if (step < 0) return Ok();
        states[static_cast<std::size_t>(r)]->Set(static_cast<float>(step));
        return engine->Save(step);
      };
      const Status status = run();
      done.arrive_and_wait();
      board.TakeDown();
      if (engine != nullptr) static_cast<void>(engine->Close(In(30)).ok());
      MutexLock lock(mutex);
      if (all.ok()) all = status;
    });
    return all;
  }

  Manifest Newest() {
    const auto name = FindCheckpoint(files_, "/root", "");
    EXPECT_TRUE(name.ok()) << name.status().ToString();
    return *ReadManifest(files_, "/root", *name);
  }

  RecordingFiles files_;
};

TEST_F(AliasTest, TiedWeightsAreWrittenOnceAndComeBackTiedOrNot) {
  Tied a(true);
  Tied b(true);
  ASSERT_TRUE(Run({&a, &b}, 5).ok());
  const Manifest manifest = Newest();
  EXPECT_EQ(manifest.aliases,
            (std::map<std::string, std::string>{{"model.head", "model.embedding"}}));
  EXPECT_EQ(manifest.tensors.count("model.head"), 0u);
  EXPECT_EQ(manifest.TotalBytes(), 2 * 4096 + 24 * 4);

  Tied tied(true);
  EXPECT_TRUE(Run({&tied}, -1).ok());
  EXPECT_EQ(tied.embedding, a.embedding);
  Tied untied(false);
  EXPECT_TRUE(Run({&untied}, -1).ok());
  EXPECT_EQ(untied.embedding, a.embedding);
  EXPECT_EQ(untied.head, a.embedding);
  // Strict about names nevertheless.
  Tied without(false);
  without.with_head = false;
  EXPECT_THAT(Run({&without}, -1).message(),
              HasSubstr("tensor model.head: in the checkpoint, not in the program"));
}

TEST_F(AliasTest, WhatEveryRankHasOfItsOwnMayHaveTwoNamesToo) {
  Tied a(true);
  Tied b(true);
  a.holders = b.holders = Holders::kPerRank;
  ASSERT_TRUE(Run({&a, &b}, 5).ok());
  EXPECT_EQ(Newest().Stored("model.head@rank1"), "model.embedding@rank1");
  Tied first(false);
  Tied second(false);
  first.holders = second.holders = Holders::kPerRank;
  const Status restored = Run({&first, &second}, -1);
  EXPECT_TRUE(restored.ok()) << restored.ToString();
  EXPECT_EQ(second.head, b.embedding);
}

TEST_F(AliasTest, ToolsKnowBothNames) {
  Tied a(true);
  ASSERT_TRUE(Run({&a}, 5).ok());
  const CheckpointName name = *FindCheckpoint(files_, "/root", "");
  EXPECT_TRUE(VerifyCheckpoint(files_, "/root", name).problems.empty());
  const DrillReport drill = DrillRestore(files_, "/root", name);
  EXPECT_TRUE(drill.problems.empty());
  EXPECT_EQ(drill.tensors, 2);
  const auto exported = ExportCheckpoint(files_, "/root", name, {}, "/root/out.safetensors");
  ASSERT_TRUE(exported.ok()) << exported.status().ToString();
  EXPECT_EQ(exported->tensors, 2);
  // The format has no second names: both are there, with the same values.
  const std::string text = *ReadWholeFile(files_, exported->path, 1 << 20);
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, text.data(), 8);
  const auto header = ParseSafetensorsHeader(std::string_view(text).substr(8, header_bytes),
                                             static_cast<std::int64_t>(text.size()), "out");
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  ASSERT_EQ(header->entries.size(), 2u);
  for (const SafetensorsEntry& entry : header->entries) {
    std::vector<float> values(24);
    std::memcpy(values.data(), text.data() + header->data_start + entry.begin, 24 * sizeof(float));
    EXPECT_EQ(values, a.embedding) << entry.name;
  }
}

// What is tied in one and not in the other is compared by its values.
TEST_F(AliasTest, DiffSeesValuesNotTies) {
  Tied a(true);
  ASSERT_TRUE(Run({&a}, 5).ok());
  const CheckpointName tied = *FindCheckpoint(files_, "/root", "");
  Tied b(false);
  b.always = 5;
  ASSERT_TRUE(Run({&b}, 6).ok());
  const CheckpointName untied = *FindCheckpoint(files_, "/root", "");
  EXPECT_TRUE(Newest().aliases.empty());
  const auto same = DiffCheckpoints(files_, {"/root", tied}, {"/root", untied});
  ASSERT_TRUE(same.ok()) << same.status().ToString();
  EXPECT_EQ(same->same, 2);
  EXPECT_TRUE(same->differences.empty());

  b.head_7 = -1;
  ASSERT_TRUE(Run({&b}, 7).ok());
  const auto other =
      DiffCheckpoints(files_, {"/root", untied}, {"/root", *FindCheckpoint(files_, "/root", "")});
  ASSERT_TRUE(other.ok()) << other.status().ToString();
  EXPECT_EQ(other->same, 1);
  ASSERT_EQ(other->differences.size(), 1u);
  EXPECT_EQ(other->differences[0].name, "model.head");
  EXPECT_EQ(other->differences[0].different, 1);
  EXPECT_EQ(other->differences[0].elements, 24);
}

TEST_F(AliasTest, ATiedProgramIsNotGivenTwoDifferentTensors) {
  Tied untied(false);
  ASSERT_TRUE(Run({&untied}, 5).ok());
  EXPECT_TRUE(Newest().aliases.empty());
  Tied tied(true);
  EXPECT_TRUE(Run({&tied}, -1).ok());
  EXPECT_EQ(tied.embedding, untied.embedding);

  const auto claimed =
      CheckpointEngine::ClaimNext(files_, "/root", "toy", Generation(1), RealClock());
  Board board;
  MemoryGroup group(board, Rank(0), 1, *claimed);
  auto engine = CheckpointEngine::Open(ToyOptions("/root"), group, files_, RealClock(), {}, In(30));
  ASSERT_TRUE(engine.ok());
  (*engine)->Add("model", untied);
  ASSERT_TRUE((*engine)->Restore().ok());
  untied.head[3] = 17;
  ASSERT_TRUE((*engine)->Save(6).ok());
  ASSERT_TRUE((*engine)->Close(In(30)).ok());
  const Status refused = Run({&tied}, -1);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.message(),
              HasSubstr("tensors model.embedding and model.head: one memory in the program, "
                        "different values in the checkpoint"));
}

TEST_F(AliasTest, OneRankWithoutTheTieMakesTwoTensors) {
  Tied a(true);
  Tied b(false);
  ASSERT_TRUE(Run({&a, &b}, 5).ok());
  EXPECT_TRUE(Newest().aliases.empty());
  EXPECT_EQ(Newest().tensors.count("model.head"), 1u);
  Tied back(false);
  EXPECT_TRUE(Run({&back}, -1).ok());
  EXPECT_EQ(back.head, b.head);
}

TEST_F(AliasTest, ACheckpointThatKnowsOneNameServesATiedProgram) {
  Tied before(false);
  before.with_head = false;
  ASSERT_TRUE(Run({&before}, 5).ok());
  Tied tied(true);
  const Status restored = Run({&tied}, -1);
  EXPECT_TRUE(restored.ok()) << restored.ToString();
  EXPECT_EQ(tied.embedding, before.embedding);
  Tied untied(false);
  EXPECT_THAT(Run({&untied}, -1).message(), HasSubstr("tensor model.head: in the program"));
}

TEST_F(AliasTest, ATransposedViewIsATensorOfItsOwn) {
  Tied a(true);
  a.with_transposed = true;
  ASSERT_TRUE(Run({&a}, 5).ok());
  EXPECT_EQ(Newest().aliases.size(), 1u);
  EXPECT_EQ(Newest().tensors.at("model.transposed").shape, (Shape{4, 6}));
  Tied back(true);
  back.with_transposed = true;
  EXPECT_TRUE(Run({&back}, -1).ok());
  EXPECT_EQ(back.embedding, a.embedding);
}

TEST_F(AliasTest, WhatIsStreamedIsWrittenOnceToo) {
  Tied a(true);
  const auto claimed =
      CheckpointEngine::ClaimNext(files_, "/root", "toy", Generation(1), RealClock());
  Board board;
  MemoryGroup group(board, Rank(0), 1, *claimed);
  CheckpointOptions options = ToyOptions("/root");
  options.staging_bytes_max = 1;
  auto engine = CheckpointEngine::Open(options, group, files_, RealClock(), {}, In(30));
  ASSERT_TRUE(engine.ok());
  (*engine)->Add("model", a);
  ASSERT_TRUE((*engine)->Restore().ok());
  a.Set(3);
  ASSERT_TRUE((*engine)->Save(0).ok());
  ASSERT_TRUE((*engine)->Close(In(30)).ok());
  EXPECT_EQ(Newest().aliases.size(), 1u);
  Tied untied(false);
  EXPECT_TRUE(Run({&untied}, -1).ok());
  EXPECT_EQ(untied.head, a.embedding);
}

TEST_F(AliasTest, AManifestWithAnAliasOfNothingIsDamaged) {
  Manifest manifest;
  manifest.root_id = "00112233445566778899aabbccddeeff";
  manifest.id = {Generation(1), Step(1)};
  manifest.world = 1;
  manifest.tensors["a"] = {DType::kF32, {2}};
  manifest.aliases["b"] = "a";
  const auto parsed = ParseManifest(FormatManifest(manifest), "m");
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(*parsed, manifest);
  EXPECT_EQ(parsed->Stored("b"), "a");
  EXPECT_EQ(parsed->TensorsByName().size(), 2u);
  for (const auto& [name, stored] :
       std::map<std::string, std::string>{{"c", "b"}, {"d", "nothing"}, {"a", "a"}}) {
    Manifest bad = manifest;
    bad.aliases[name] = stored;
    EXPECT_EQ(ParseManifest(FormatManifest(bad), "m").status().code(), Code::kDataLoss) << name;
  }
}

}  // namespace
}  // namespace perdure
