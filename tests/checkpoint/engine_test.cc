#include "checkpoint/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "checkpoint/claim.h"
#include "checkpoint/json.h"
#include "storage/faulty_files.h"
#include "storage/file_store.h"
#include "storage/posix_files.h"
#include "support.h"
#include "support/temp_dir.h"

namespace perdure {
namespace {

using Resume = RestoreRules::Resume;

class EngineTest : public testing::Test {
 protected:
  std::string root() const { return dir_.path() + "/checkpoints"; }
  Generation Claim() {
    Result<Generation> claimed =
        CheckpointEngine::ClaimNext(files_, root(), "toy", Generation(1), RealClock());
    EXPECT_TRUE(claimed.ok()) << claimed.status().ToString();
    return claimed.ok() ? *claimed : Generation(0);
  }
  // One rank, one generation: restores, runs the steps [next, last], saving each.
  RestoreReport RunAlone(std::int64_t last, CheckpointOptions options) {
    const Generation generation = Claim();
    Board board;
    ToyRank rank(board, 0, 1, generation, files_, std::move(options));
    EXPECT_TRUE(rank.opened.ok()) << rank.opened.ToString();
    if (!rank.opened.ok()) return {};
    for (std::int64_t step = rank.report.next_step; step <= last; ++step) {
      rank.engine->BeginStep(step);
      rank.state->Set(step);
      EXPECT_TRUE(rank.engine->EndStep(step).ok());
      EXPECT_TRUE(rank.engine->Save(step).ok());
    }
    const Status closed = rank.engine->Close(In(30));
    EXPECT_TRUE(closed.ok()) << closed.ToString();
    return rank.report;
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(root())) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TempDir dir_;
  PosixFiles files_;
};

TEST_F(EngineTest, OneRankSavesAndComesBack) {
  const RestoreReport first = RunAlone(3, ToyOptions(root()));
  EXPECT_TRUE(first.fresh);
  EXPECT_EQ(first.next_step, 0);

  const Generation generation = Claim();
  EXPECT_EQ(generation, Generation(2));
  Board board;
  ToyRank rank(board, 0, 1, generation, files_, ToyOptions(root()));
  ASSERT_TRUE(rank.opened.ok()) << rank.opened.ToString();
  EXPECT_FALSE(rank.report.fresh);
  EXPECT_EQ(rank.report.next_step, 4);
  EXPECT_EQ(rank.report.checkpoint, "step-00000003.g1");
  EXPECT_EQ(rank.report.from_generation, Generation(1));
  EXPECT_TRUE(rank.state->Is(3));
  EXPECT_TRUE(rank.engine->Close(In(10)).ok());
}

TEST_F(EngineTest, FourRanksSaveWhatIsDueAndComeBack) {
  CheckpointOptions options = ToyOptions(root());
  options.interval_steps = 2;
  for (int round = 0; round < 2; ++round) {
    const Generation generation = Claim();
    Board board;
    RunRanks(4, [&](int r) {
      ToyRank rank(board, r, 4, generation, files_, options);
      ASSERT_TRUE(rank.opened.ok()) << rank.opened.ToString();
      EXPECT_EQ(rank.report.next_step, round * 7);
      EXPECT_TRUE(rank.state->Is(round * 7 - 1));
      for (std::int64_t step = rank.report.next_step; step < round * 7 + 7; ++step) {
        rank.engine->BeginStep(step);
        rank.state->Set(step);
        const Status ended = rank.engine->EndStep(step);
        EXPECT_TRUE(ended.ok()) << ended.ToString();
      }
      const Status closed = rank.engine->Close(In(30));
      EXPECT_TRUE(closed.ok()) << closed.ToString();
      EXPECT_EQ(rank.engine->last_committed_step(), round == 0 ? 6 : 12);
    });
  }
}

// ---------------------------------------------------------------- saving

TEST_F(EngineTest, WhatIsChangedAfterSaveReturnsIsNotInIt) {
  const Generation generation = Claim();
  {
    Board board;
    ToyRank rank(board, 0, 1, generation, files_, ToyOptions(root()));
    ASSERT_TRUE(rank.opened.ok());
    rank.state->Set(0);
    ASSERT_TRUE(rank.engine->Save(0).ok());
    rank.state->Set(17);
    EXPECT_TRUE(rank.engine->Wait(In(30)).ok());
    EXPECT_EQ(rank.engine->last_committed_step(), 0);
  }
  Board board;
  ToyRank rank(board, 0, 1, Claim(), files_, ToyOptions(root()));
  ASSERT_TRUE(rank.opened.ok());
  EXPECT_TRUE(rank.state->Is(0));
}

TEST_F(EngineTest, ASaveOfTheSameStepJoins) {
  Board board;
  ToyRank rank(board, 0, 1, Claim(), files_, ToyOptions(root()));
  ASSERT_TRUE(rank.opened.ok());
  ASSERT_TRUE(rank.engine->Save(5).ok());
  ASSERT_TRUE(rank.engine->Save(5).ok());
  EXPECT_TRUE(rank.engine->Close(In(30)).ok());
  EXPECT_EQ(rank.engine->last_committed_step(), 5);
}

TEST_F(EngineTest, KeepsTheNewestAndDeletesOneCommitLater) {
  RunAlone(5, ToyOptions(root()));
  EXPECT_EQ(Names(),
            (std::vector<std::string>{".trash-step-00000003.g1", "latest", "lineage",
                                      "perdure.json", "step-00000004.g1", "step-00000005.g1"}));
}

TEST_F(EngineTest, RetentionLeavesAloneWhatIsNotOurs) {
  std::filesystem::create_directories(root() + "/step-00000001.g9");
  std::ofstream(root() + "/step-00000001.g9/precious") << "mine";
  std::filesystem::create_directories(root() + "/.trash-step-00000001.g1");
  std::ofstream(root() + "/.trash-step-00000001.g1/precious") << "mine";
  const RestoreReport report = RunAlone(4, ToyOptions(root()));
  EXPECT_TRUE(report.fresh);
  EXPECT_TRUE(std::filesystem::exists(root() + "/step-00000001.g9/precious"));
  EXPECT_TRUE(std::filesystem::exists(root() + "/.trash-step-00000001.g1/precious"));
}

TEST_F(EngineTest, ADifferenceBetweenReplicasNamesTensorAndRank) {
  const Generation generation = Claim();
  Board board;
  RunRanks(3, [&](int r) {
    ToyRank rank(board, r, 3, generation, files_, ToyOptions(root()));
    ASSERT_TRUE(rank.opened.ok());
    rank.state->Set(0);
    if (r == 1) rank.state->weight()[7] += 1;
    ASSERT_TRUE(rank.engine->Save(0).ok());
    const Status status = rank.engine->Wait(In(30));
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.ToString();
    EXPECT_NE(status.message().find("tensor toy.weight: rank 1 holds other bytes than rank 0, 2"),
              std::string::npos)
        << status.message();
    // CKPT-7: and the next one works.
    rank.state->Set(1);
    ASSERT_TRUE(rank.engine->Save(1).ok());
    EXPECT_TRUE(rank.engine->Wait(In(30)).ok());
  });
  EXPECT_TRUE(std::filesystem::exists(root() + "/step-00000001.g1/manifest.json"));
  EXPECT_FALSE(std::filesystem::exists(root() + "/step-00000000.g1"));
}

// Each storage step of a save fails once, with each of these errors.
TEST_F(EngineTest, AFaultAtAnyStepIsSurvivedByTheSecondTryOrTold) {
  RunAlone(1, ToyOptions(root()));
  const Generation generation = Claim();
  FaultyFiles faulty(files_);
  Board board;
  int failures = 0;
  CheckpointEvents events;
  events.on_failed = [&](const CheckpointFailure&) { ++failures; };
  CheckpointOptions options = ToyOptions(root());
  options.async_save = false;
  options.stop_after = 0;
  ToyRank rank(board, 0, 1, generation, faulty, options, events);
  ASSERT_TRUE(rank.opened.ok());
  std::int64_t step = 2;
  for (const auto kind : {Fault::Kind::kError, Fault::Kind::kShortWrite}) {
    for (std::int64_t n = 1;; ++n) {
      const std::int64_t before = faulty.steps();
      faulty.Set({{.kind = kind, .first_step = n, .last_step = n, .error = n % 2 ? EIO : ENOSPC}});
      rank.state->Set(step);
      const int failures_before = failures;
      const Status saved = rank.engine->Save(step);
      EXPECT_EQ(saved.ok(), failures == failures_before) << n;
      faulty.Set({});
      rank.state->Set(step + 1);
      ASSERT_TRUE(rank.engine->Save(step + 1).ok()) << "after the fault at step " << n;
      step += 2;
      if (faulty.steps() - before < n) break;  // beyond the last step of two saves
    }
  }
  EXPECT_LT(failures, 10) << "most faults are survived by the second try";
  EXPECT_TRUE(rank.engine->Close(In(30)).ok());
  Board next_board;
  ToyRank next(next_board, 0, 1, Claim(), files_, ToyOptions(root()));
  ASSERT_TRUE(next.opened.ok()) << next.opened.ToString();
  EXPECT_EQ(next.report.next_step, step);
  EXPECT_TRUE(next.state->Is(step - 1));
}

TEST_F(EngineTest, AFullDiskLeavesTheLastCheckpointAndStopsAfterSoMany) {
  RunAlone(1, ToyOptions(root()));
  FaultyFiles faulty(files_);
  Board board;
  CheckpointOptions options = ToyOptions(root());
  options.async_save = false;
  options.interval_steps = 1;
  options.stop_after = 2;
  std::vector<CheckpointFailure> failures;
  CheckpointEvents events;
  events.on_failed = [&](const CheckpointFailure& failure) { failures.push_back(failure); };
  ToyRank rank(board, 0, 1, Claim(), faulty, options, events);
  ASSERT_TRUE(rank.opened.ok());
  for (const char* verb : {"write", "sync", "close", "syncdir"}) {
    SCOPED_TRACE(verb);
    faulty.Set({{.error = ENOSPC, .verb = verb}});
    const std::int64_t step = 2 + static_cast<std::int64_t>(failures.size()) * 2;
    EXPECT_TRUE(rank.engine->EndStep(step).ok()) << "one failure is told, not fatal";
    EXPECT_EQ(rank.engine->Wait(In(30)).code(), Code::kResourceExhausted);
    EXPECT_NE(failures.back().reason.find("No space left on device"), std::string::npos);
    faulty.Set({});
    rank.state->Set(step + 1);
    EXPECT_TRUE(rank.engine->EndStep(step + 1).ok());
    EXPECT_TRUE(rank.engine->Wait(In(30)).ok());
  }
  faulty.Set({{.error = ENOSPC, .verb = "write"}});
  EXPECT_TRUE(rank.engine->EndStep(50).ok());
  const Status stopped = rank.engine->EndStep(51);
  EXPECT_EQ(stopped.code(), Code::kResourceExhausted);
  EXPECT_NE(stopped.message().find("2 checkpoints failed in a row"), std::string::npos);
  EXPECT_FALSE(rank.engine->Close(In(30)).ok()) << "not durable at the end";
}

TEST_F(EngineTest, AFencedGenerationCommitsAndDeletesNothing) {
  Board board;
  CheckpointOptions options = ToyOptions(root());
  options.interval_steps = 1;
  options.async_save = false;
  ToyRank old(board, 0, 1, Claim(), files_, options);
  ASSERT_TRUE(old.opened.ok());
  for (std::int64_t step = 0; step < 4; ++step) ASSERT_TRUE(old.engine->EndStep(step).ok());
  Claim();
  const std::vector<std::string> before = Names();
  const Status ended = old.engine->EndStep(4);
  EXPECT_EQ(ended.code(), Code::kFenced) << ended.ToString();
  EXPECT_NE(ended.message().find("generation 2"), std::string::npos);
  EXPECT_EQ(Names(), before);
}

TEST_F(EngineTest, AnAttemptOfAnOlderGenerationFindsNothingToRename) {
  Claim();
  std::filesystem::create_directories(root() + "/.tmp-step-00000007.g1-0badcafe");
  Claim();
  EXPECT_FALSE(std::filesystem::exists(root() + "/.tmp-step-00000007.g1-0badcafe"));
  EXPECT_TRUE(std::filesystem::exists(root() + "/.trash-step-00000007.g1-0badcafe"));
}

// ---------------------------------------------------------------- requested saves

TEST_F(EngineTest, ARequestedSaveHappensAtOneStepAlthoughRanksWaitForEachOther) {
  constexpr int kWorld = 3;
  const Generation generation = Claim();
  Board board;
  Mutex mutex;
  std::vector<std::vector<std::int64_t>> committed(kWorld);
  std::vector<std::int64_t> left(kWorld, -1);
  std::barrier collective(kWorld);
  RunRanks(kWorld, [&](int r) {
    CheckpointEvents events;
    events.on_committed = [&, r](const CheckpointCommit& commit) {
      MutexLock lock(mutex);
      committed[static_cast<std::size_t>(r)].push_back(commit.step.value());
    };
    ToyRank rank(board, r, kWorld, generation, files_, ToyOptions(root()), events);
    ASSERT_TRUE(rank.opened.ok());
    bool asked = false;
    for (std::int64_t step = 0; step < 10'000'000; ++step) {
      rank.engine->BeginStep(step);
      collective.arrive_and_wait();  // nobody passes without the others
      rank.state->Set(step);
      if (step == 5 && r == 2) rank.engine->RequestSave("an operator asked", false);
      if (r == 1 && !asked && rank.engine->last_committed_step() >= 0) {
        rank.engine->RequestSave("the machine is wanted back", true);
        asked = true;
      }
      const Status ended = rank.engine->EndStep(step);
      if (ended.ok()) continue;
      EXPECT_EQ(ended.code(), Code::kPreempted) << ended.ToString();
      EXPECT_NE(ended.message().find("is durable"), std::string::npos) << ended.message();
      left[static_cast<std::size_t>(r)] = step;
      break;
    }
    EXPECT_TRUE(rank.engine->Close(In(30)).ok());
  });
  EXPECT_GE(left[0], 5);
  for (std::size_t r = 0; r < kWorld; ++r) {
    EXPECT_EQ(left[r], left[0]);
    EXPECT_EQ(committed[r], committed[0]);
    ASSERT_GE(committed[r].size(), 2u);
    EXPECT_GE(committed[r][0], 5);
    EXPECT_EQ(committed[r].back(), left[0]);
  }
}

TEST_F(EngineTest, ARankThatIsDoneMakesARequestMoot) {
  const Generation generation = Claim();
  Board board;
  std::barrier both(2);
  RunRanks(2, [&](int r) {
    ToyRank rank(board, r, 2, generation, files_, ToyOptions(root()));
    ASSERT_TRUE(rank.opened.ok());
    ASSERT_TRUE(rank.engine->EndStep(0).ok());
    if (r == 1) {
      ASSERT_TRUE(rank.engine->Close(In(30)).ok());
    }
    both.arrive_and_wait();
    if (r == 0) {
      rank.engine->RequestSave("late", true);
      EXPECT_TRUE(rank.engine->EndStep(1).ok());
      EXPECT_TRUE(rank.engine->Close(In(30)).ok());
    }
  });
}

// ---------------------------------------------------------------- restoring

TEST_F(EngineTest, AFlippedByteIsPassedOverAndTheForkSaysSo) {
  RunAlone(3, ToyOptions(root()));
  {
    std::fstream file(root() + "/step-00000003.g1/rank-00000-of-00001.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    file.put('\x55');
  }
  Board board;
  ToyRank rank(board, 0, 1, Claim(), files_, ToyOptions(root()));
  ASSERT_TRUE(rank.opened.ok()) << rank.opened.ToString();
  EXPECT_EQ(rank.report.next_step, 3);
  EXPECT_TRUE(rank.state->Is(2));
  ASSERT_EQ(rank.report.passed_over.size(), 1u);
  EXPECT_EQ(rank.report.passed_over[0].first, "step-00000003.g1");
  EXPECT_NE(rank.report.passed_over[0].second.find("toy."), std::string::npos);
  FileStore store(files_, root());
  const auto forks = ReadForks(store);
  ASSERT_TRUE(forks.ok());
  EXPECT_EQ(forks->at(1).parent, (CheckpointId{Generation(1), Step(2)}));
  EXPECT_EQ(forks->at(1).passed_over, rank.report.passed_over);
  EXPECT_EQ(forks->at(1).reason, "a test");
  EXPECT_TRUE(rank.engine->Close(In(10)).ok());

  // CKPT-4: step 3 of generation 1 is off the lineage now, whatever its bytes say.
  Board later;
  ToyRank next(later, 0, 1, Claim(), files_, ToyOptions(root()));
  ASSERT_TRUE(next.opened.ok());
  EXPECT_EQ(next.report.checkpoint, "step-00000002.g1");
  EXPECT_TRUE(next.report.passed_over.empty());
}

// What a newer program wrote is as good as the day it was written, only not for this one.
TEST_F(EngineTest, ANewerFormatIsRefusedNotPassedOver) {
  RunAlone(3, ToyOptions(root()));
  const std::string path = root() + "/step-00000003.g1/manifest.json";
  std::string text = *ReadWholeFile(files_, path, 1 << 20);
  const std::string version = "\"format_version\": 1";
  text = text.substr(0, text.find("\"digest\""))
             .replace(text.find(version), version.size(), "\"format_version\": 9");
  std::ofstream(path, std::ios::trunc) << SealJson(text);
  Board board;
  ToyRank rank(board, 0, 1, Claim(), files_, ToyOptions(root()));
  EXPECT_EQ(rank.opened.code(), Code::kUnimplemented) << rank.opened.ToString();
  EXPECT_NE(rank.opened.message().find("step-00000003.g1/manifest.json: has format version 9"),
            std::string::npos)
      << rank.opened.message();
  FileStore store(files_, root());
  EXPECT_EQ(ReadForks(store)->size(), 1u) << "no generation goes on from an older one";
}

TEST_F(EngineTest, ASwappedShardIsPassedOver) {
  RunAlone(3, ToyOptions(root()));
  std::filesystem::copy(root() + "/step-00000002.g1/rank-00000-of-00001.safetensors",
                        root() + "/step-00000003.g1/rank-00000-of-00001.safetensors",
                        std::filesystem::copy_options::overwrite_existing);
  Board board;
  ToyRank rank(board, 0, 1, Claim(), files_, ToyOptions(root()));
  ASSERT_TRUE(rank.opened.ok());
  EXPECT_EQ(rank.report.checkpoint, "step-00000002.g1");
}

TEST_F(EngineTest, ARetiredOneIsTheLastResort) {
  RunAlone(5, ToyOptions(root()));
  std::filesystem::resize_file(root() + "/step-00000005.g1/rank-00000-of-00001.safetensors", 100);
  std::filesystem::remove(root() + "/step-00000004.g1/rank-00000-of-00001.safetensors");
  Board board;
  ToyRank rank(board, 0, 1, Claim(), files_, ToyOptions(root()));
  ASSERT_TRUE(rank.opened.ok()) << rank.opened.ToString();
  EXPECT_EQ(rank.report.checkpoint, "step-00000003.g1");
  EXPECT_EQ(rank.report.passed_over.size(), 2u);
  EXPECT_TRUE(rank.state->Is(3));
  EXPECT_TRUE(std::filesystem::exists(root() + "/step-00000003.g1/manifest.json"));
}

TEST_F(EngineTest, NeverFromNothingOnceSomethingWasCommitted) {
  RunAlone(1, ToyOptions(root()));
  for (const char* name : {"/step-00000000.g1", "/step-00000001.g1"}) {
    std::filesystem::resize_file(root() + name + std::string("/manifest.json"), 20);
  }
  {
    Board board;
    ToyRank rank(board, 0, 1, Claim(), files_, ToyOptions(root()));
    EXPECT_EQ(rank.opened.code(), Code::kFailedPrecondition) << rank.opened.ToString();
    EXPECT_NE(rank.opened.message().find("step-00000001.g1"), std::string::npos);
  }
  std::filesystem::remove_all(root() + "/step-00000000.g1");
  std::filesystem::remove_all(root() + "/step-00000001.g1");
  {
    Board board;
    ToyRank rank(board, 0, 1, Claim(), files_, ToyOptions(root()));
    EXPECT_EQ(rank.opened.code(), Code::kFailedPrecondition) << "latest says so";
  }
  Board board;
  CheckpointOptions options = ToyOptions(root());
  options.restore.resume = Resume::kNever;
  ToyRank rank(board, 0, 1, Claim(), files_, options);
  EXPECT_TRUE(rank.opened.ok()) << rank.opened.ToString();
  EXPECT_TRUE(rank.report.fresh);
}

TEST_F(EngineTest, AnEarlyCrashMayStartAgainUnlessResumeIsRequired) {
  Claim();  // crashed before its fork
  {
    Board board;  // crashed before its first commit
    ToyRank rank(board, 0, 1, Claim(), files_, ToyOptions(root()));
    ASSERT_TRUE(rank.opened.ok());
  }
  {
    Board board;
    CheckpointOptions options = ToyOptions(root());
    options.restore.resume = Resume::kRequire;
    ToyRank rank(board, 0, 1, Claim(), files_, options);
    EXPECT_EQ(rank.opened.code(), Code::kFailedPrecondition);
  }
  Board board;
  ToyRank rank(board, 0, 1, Claim(), files_, ToyOptions(root()));
  EXPECT_TRUE(rank.opened.ok());
  EXPECT_TRUE(rank.report.fresh);
}

TEST_F(EngineTest, AnUnreadableForkIsAnError) {
  RunAlone(1, ToyOptions(root()));
  {
    std::fstream file(root() + "/lineage/g1.json", std::ios::in | std::ios::out);
    file.seekp(30);
    file.put('!');
  }
  Board board;
  ToyRank rank(board, 0, 1, Claim(), files_, ToyOptions(root()));
  EXPECT_EQ(rank.opened.code(), Code::kDataLoss);
  EXPECT_NE(rank.opened.message().find("lineage/g1.json"), std::string::npos);
}

TEST_F(EngineTest, WhatToAvoidAndWhatToSkipIsKeptInTheFork) {
  RunAlone(3, ToyOptions(root()));
  CheckpointOptions options = ToyOptions(root());
  options.restore.avoid = {"step-00000003.g1"};
  options.restore.skip_samples = {{100, 200}};
  Board board;
  {
    ToyRank rank(board, 0, 1, Claim(), files_, options);
    ASSERT_TRUE(rank.opened.ok());
    EXPECT_EQ(rank.report.checkpoint, "step-00000002.g1");
    EXPECT_EQ(rank.engine->skipped_samples(), (std::vector<SampleRange>{{100, 200}}));
    ASSERT_TRUE(rank.engine->Save(3).ok());
    ASSERT_TRUE(rank.engine->Close(In(30)).ok());
  }
  Board later;
  ToyRank next(later, 0, 1, Claim(), files_, ToyOptions(root()));
  ASSERT_TRUE(next.opened.ok());
  EXPECT_EQ(next.report.checkpoint, "step-00000003.g2");
  EXPECT_EQ(next.engine->skipped_samples(), (std::vector<SampleRange>{{100, 200}}));
}

// A model of other names, types and shapes.
class OtherState final : public Stateful {
 public:
  Result<State> Describe() override {
    State state;
    TensorEntry weight;
    weight.name = "weight";
    weight.view = {weight_, DType::kBF16, {6, 5}};
    TensorEntry scalar;
    scalar.name = "scalar";
    scalar.view = {scalar_, DType::kF32, {1}};
    TensorEntry added;
    added.name = "new";
    added.view = {scalar_, DType::kF32, {}};
    state.tensors = {weight, scalar, added};
    state.blobs.push_back({"counter", "untouched", Holders::kReplicated, Changes::kAtAnyTime});
    return state;
  }
  Status FinishRestore(const std::vector<BlobEntry>&) override {
    finished = true;
    return Ok();
  }
  bool finished = false;

 private:
  std::uint16_t weight_[30] = {};
  float scalar_[1] = {};
};

TEST_F(EngineTest, AnotherModelsCheckpointGivesOneErrorThatListsEverything) {
  RunAlone(1, ToyOptions(root()));
  const Generation generation = Claim();
  Board board;
  MemoryGroup group(board, Rank(0), 1, generation);
  auto engine = CheckpointEngine::Open(ToyOptions(root()), group, files_, RealClock(), {}, In(30));
  ASSERT_TRUE(engine.ok());
  OtherState state;
  (*engine)->Add("toy", state);
  const Status status = (*engine)->Restore().status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  for (const char* line : {"tensor toy.weight: dtype BF16 in the program, F32 in the checkpoint",
                           "tensor toy.scalar: shape [1] in the program, [] in the checkpoint",
                           "tensor toy.new: in the program (F32 []), not in the checkpoint",
                           "tensor toy.shard: in the checkpoint, not in the program",
                           "tensor toy.mine@rank0: in the checkpoint, not in the program",
                           "blob toy.own@rank0: in the checkpoint, not in the program"}) {
    EXPECT_NE(status.message().find(line), std::string::npos) << line << "\n" << status.message();
  }
  EXPECT_FALSE(state.finished);
  EXPECT_FALSE(std::filesystem::exists(root() + "/lineage/g2.json")) << "nothing was forked";
}

TEST_F(EngineTest, AnotherWorldSizeIsToldByWhatDoesNotFit) {
  RunAlone(1, ToyOptions(root()));
  const Generation generation = Claim();
  Board board;
  RunRanks(2, [&](int r) {
    ToyRank rank(board, r, 2, generation, files_, ToyOptions(root()));
    EXPECT_EQ(rank.opened.code(), Code::kFailedPrecondition);
    EXPECT_NE(rank.opened.message().find("tensor toy.mine: every rank has its own"),
              std::string::npos);
    EXPECT_NE(rank.opened.message().find("saved by 1 ranks, this world has 2"), std::string::npos);
    EXPECT_TRUE(rank.state->Is(-1)) << "nothing was changed";  // CKPT-8
  });
}

TEST_F(EngineTest, ARankWithoutTheMountIsNamed) {
  const Generation generation = Claim();
  Board board;
  RunRanks(2, [&](int r) {
    MemoryGroup group(board, Rank(r), 2, generation);
    CheckpointOptions options = ToyOptions(r == 0 ? root() : dir_ / "elsewhere");
    const Status opened =
        CheckpointEngine::Open(options, group, files_, RealClock(), {}, In(1)).status();
    EXPECT_EQ(opened.code(), Code::kFailedPrecondition) << opened.ToString();
    EXPECT_NE(opened.message().find("rank 1 does not see"), std::string::npos) << opened.message();
  });
}

TEST_F(EngineTest, BadOptionsAndBadNamesAreRefused) {
  const Generation generation = Claim();
  Board board;
  MemoryGroup group(board, Rank(0), 1, generation);
  CheckpointOptions options = ToyOptions(root());
  options.keep_last_n = 1;
  EXPECT_EQ(CheckpointEngine::Open(options, group, files_, RealClock(), {}, In(1)).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(
      CheckpointEngine::Claim(files_, root(), "another job", Generation(9), RealClock()).code(),
      Code::kFailedPrecondition);
  EXPECT_EQ(CheckpointEngine::Claim(files_, root(), "toy", generation, RealClock()).code(),
            Code::kFenced);
  std::ofstream(dir_ / "file") << "x";
  EXPECT_EQ(CheckpointEngine::Claim(files_, dir_ / "file", "toy", generation, RealClock()).code(),
            Code::kFailedPrecondition);
  auto engine = CheckpointEngine::Open(ToyOptions(root()), group, files_, RealClock(), {}, In(5));
  ASSERT_TRUE(engine.ok());
  ToyState state(0, 1);
  (*engine)->Add("dotted.name", state);
  EXPECT_EQ((*engine)->Restore().status().code(), Code::kInvalidArgument);
  EXPECT_EQ((*engine)->Save(0).code(), Code::kFailedPrecondition) << "before Restore";
}

}  // namespace
}  // namespace perdure
