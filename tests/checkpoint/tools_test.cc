// What people do to a checkpoint root: compare, take out, drill, tidy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/diff.h"
#include "checkpoint/drill.h"
#include "checkpoint/export.h"
#include "checkpoint/inspect.h"
#include "checkpoint/pins.h"
#include "checkpoint/prune.h"
#include "checkpoint/safetensors.h"
#include "storage/file_store.h"
#include "support/temp_dir.h"
#include "toy_root.h"

namespace perdure {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ToolsTest : public testing::Test {
 protected:
  ToolsTest() { MakeToyRoot(files_, root_, 9); }

  std::string PathOf(const std::string& name) { return root_ + "/" + name; }
  CheckpointPlace Place(const std::string& name) { return {root_, *ParseName(name)}; }

  // One file of an export: the names in it with their bytes.
  std::map<std::string, std::string> TensorsIn(const std::string& path) {
    std::map<std::string, std::string> tensors;
    const auto text = ReadWholeFile(files_, path, 1 << 20);
    EXPECT_TRUE(text.ok()) << text.status().ToString();
    if (!text.ok()) return tensors;
    std::uint64_t n = 0;
    std::memcpy(&n, text->data(), 8);
    const auto header = ParseSafetensorsHeader(std::string_view(*text).substr(8, n),
                                               static_cast<std::int64_t>(text->size()), path);
    EXPECT_TRUE(header.ok()) << header.status().ToString();
    if (!header.ok()) return tensors;
    for (const SafetensorsEntry& entry : header->entries) {
      tensors[entry.name] = text->substr(static_cast<std::size_t>(header->data_start + entry.begin),
                                         static_cast<std::size_t>(entry.end - entry.begin));
    }
    return tensors;
  }

  std::vector<std::string> Committed() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(root_)) {
      const std::string name = entry.path().filename().string();
      if (name.find("step-") != std::string::npos) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TempDir dir_;
  PosixFiles files_;
  const std::string root_ = dir_ / "checkpoints";
  FileStore store_{files_, root_};
  const WallTime now_ = RealClock().WallNow();
};

// ---------------------------------------------------------------- diff

TEST(CountDifferent, ComparesElementsNotBytes) {
  const auto bytes = [](std::vector<int> values) {
    std::vector<std::byte> out;
    for (const int value : values) out.push_back(static_cast<std::byte>(value));
    return out;
  };
  EXPECT_EQ(CountDifferent(32, {}, {}), 0);
  const auto a = bytes({0, 0, 0, 0, 1, 2, 3, 4});
  EXPECT_EQ(CountDifferent(32, a, a), 0);
  EXPECT_EQ(CountDifferent(32, a, bytes({1, 1, 0, 0, 1, 2, 3, 4})), 1);
  EXPECT_EQ(CountDifferent(8, a, bytes({1, 1, 0, 0, 1, 2, 3, 5})), 3);
  EXPECT_EQ(CountDifferent(64, a, bytes({1, 1, 0, 0, 1, 2, 3, 5})), 1);
  // Two elements of four bits in a byte; four of six bits in three.
  EXPECT_EQ(CountDifferent(4, bytes({0x00, 0x00}), bytes({0x01, 0x11})), 3);
  EXPECT_EQ(CountDifferent(6, bytes({0, 0, 0}), bytes({0x40, 0, 0x80})), 2);
}

TEST_F(ToolsTest, DiffOfACheckpointWithItselfReadsNoData) {
  const auto same = DiffCheckpoints(files_, Place("step-00000005.g2"), Place("step-00000005.g2"));
  ASSERT_TRUE(same.ok()) << same.status().ToString();
  EXPECT_THAT(same->differences, IsEmpty());
  EXPECT_EQ(same->same, 8);  // 5 tensors, 3 blobs
  EXPECT_EQ(same->bytes_read, 0);
}

TEST_F(ToolsTest, DiffCountsWhatDiffers) {
  std::int64_t last = -1;
  const auto diff = DiffCheckpoints(files_, Place("step-00000004.g2"), Place("step-00000005.g2"),
                                    [&](std::int64_t done, std::int64_t total) {
                                      EXPECT_GE(done, last);
                                      EXPECT_LE(done, total);
                                      last = done;
                                    });
  ASSERT_TRUE(diff.ok()) << diff.status().ToString();
  EXPECT_GT(last, 0);
  std::map<std::string, ContentDifference> by_name;
  for (const ContentDifference& difference : diff->differences) {
    by_name[difference.name] = difference;
  }
  EXPECT_EQ(by_name.at("toy.weight").different, 30);
  EXPECT_EQ(by_name.at("toy.weight").elements, 30);
  EXPECT_EQ(by_name.at("toy.shard").different, 21);
  EXPECT_EQ(by_name.at("toy.scalar").different, 1);
  EXPECT_EQ(by_name.at("toy.counter").different, 1);  // "step 4", "step 5"
  EXPECT_EQ(by_name.at("toy.counter").kind, "blob");
  EXPECT_EQ(diff->same, 0);
  EXPECT_GT(diff->bytes_read, 0);
}

// The same state under another layout is the same.
TEST_F(ToolsTest, DiffDoesNotSeeTheLayout) {
  const std::string other = dir_ / "other";
  const auto generation =
      CheckpointEngine::ClaimNext(files_, other, "toy", Generation(1), RealClock());
  ASSERT_TRUE(generation.ok());
  Board board;
  CheckpointOptions options = ToyOptions(other);
  options.interval_steps = 5;
  ToyRank rank(board, 0, 1, *generation, files_, options);
  ASSERT_TRUE(rank.opened.ok()) << rank.opened.ToString();
  rank.state->Set(5);
  rank.state->weight()[7] = -1;
  ASSERT_TRUE(rank.engine->EndStep(5).ok());
  ASSERT_TRUE(rank.engine->Close(In(30)).ok());
  const auto diff =
      DiffCheckpoints(files_, Place("step-00000005.g2"), {other, *ParseName("step-00000005.g1")});
  ASSERT_TRUE(diff.ok()) << diff.status().ToString();
  std::map<std::string, std::string> by_name;
  for (const ContentDifference& difference : diff->differences) {
    by_name[difference.name] = difference.what;
    EXPECT_EQ(difference.different, difference.what == "values" ? 1 : 0) << difference.name;
  }
  EXPECT_EQ(by_name, (std::map<std::string, std::string>{{"toy.mine@rank1", "only in A"},
                                                         {"toy.own@rank1", "only in A"},
                                                         {"toy.weight", "values"}}));
}

TEST_F(ToolsTest, DiffOfADamagedOneIsAnError) {
  DamageShard(PathOf("step-00000005.g2"), 1);
  const Status diff =
      DiffCheckpoints(files_, Place("step-00000004.g2"), Place("step-00000005.g2")).status();
  EXPECT_EQ(diff.code(), Code::kDataLoss);
  EXPECT_THAT(diff.message(), HasSubstr("rank-00001-of-00002.safetensors"));
}

// ---------------------------------------------------------------- export

TEST_F(ToolsTest, ExportIntoSeveralFilesWithTheirIndex) {
  ExportOptions options;
  options.part = "toy";
  options.shard_bytes_max = 100;
  const std::string out = dir_ / "several";
  const auto report = ExportCheckpoint(files_, root_, *ParseName("step-00000005.g2"), options, out);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->path, out + "/model.safetensors.index.json");
  EXPECT_EQ(report->tensors, 5);

  const auto text = ReadWholeFile(files_, report->path, 1 << 20);
  ASSERT_TRUE(text.ok());
  const auto index = nlohmann::json::parse(*text);
  std::int64_t bytes = 0;
  std::size_t tensors = 0;
  for (std::size_t i = 0; i < report->files.size(); ++i) {
    const std::string name = std::filesystem::path(report->files[i]).filename().string();
    EXPECT_EQ(name, "model-0000" + std::to_string(i + 1) + "-of-0000" +
                        std::to_string(report->files.size()) + ".safetensors");
    std::int64_t in_file = 0;
    const auto found = TensorsIn(report->files[i]);
    for (const auto& [tensor, data] : found) {
      EXPECT_EQ(index.at("weight_map").at(tensor), name);
      in_file += static_cast<std::int64_t>(data.size());
    }
    // 30 floats are more than the limit: they have a file of their own.
    EXPECT_TRUE(in_file <= 100 || found.size() == 1) << name;
    bytes += in_file;
    tensors += found.size();
  }
  EXPECT_EQ(tensors, 5u);
  EXPECT_EQ(index.at("weight_map").size(), 5u);
  EXPECT_EQ(index.at("metadata").at("total_size"), bytes);
  EXPECT_EQ(bytes, 4 * (30 + 1 + 21 + 4 + 4));

  // The same bytes as in one file.
  options.shard_bytes_max = 0;
  const std::string one = dir_ / "one.safetensors";
  ASSERT_TRUE(ExportCheckpoint(files_, root_, *ParseName("step-00000005.g2"), options, one).ok());
  const auto whole = TensorsIn(one);
  for (const std::string& file : report->files) {
    for (const auto& [tensor, data] : TensorsIn(file)) EXPECT_EQ(whole.at(tensor), data) << tensor;
  }

  // What is there already would be read instead of, or beside, the new ones.
  const auto again = [&](std::int64_t limit) {
    options.shard_bytes_max = limit;
    return ExportCheckpoint(files_, root_, *ParseName("step-00000005.g2"), options, out).status();
  };
  EXPECT_EQ(again(100).code(), Code::kAlreadyExists);
  EXPECT_EQ(again(0).code(), Code::kAlreadyExists);
  EXPECT_THAT(again(0).message(), HasSubstr("model.safetensors.index.json exists"));
}

TEST_F(ToolsTest, ExportWithALimitThatIsWideEnoughIsOneFile) {
  ExportOptions options;
  options.part = "toy";
  options.shard_bytes_max = 1 << 20;
  const std::string out = dir_ / "new";
  const auto report = ExportCheckpoint(files_, root_, *ParseName("step-00000005.g2"), options, out);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->path, out + "/model.safetensors");
  EXPECT_EQ(TensorsIn(report->path).size(), 5u);
}

TEST_F(ToolsTest, ExportRefusesHolesAndDamageAndLeavesNothing) {
  LeaveOutRank1(files_, PathOf("step-00000005.g2"));
  DamageShard(PathOf("step-00000004.g2"), 1);
  ExportOptions options;
  options.part = "toy";
  for (const std::int64_t limit : {0, 100}) {
    options.shard_bytes_max = limit;
    const std::string out = dir_ / (limit == 0 ? "a.safetensors" : "b");
    const Status hole =
        ExportCheckpoint(files_, root_, *ParseName("step-00000005.g2"), options, out).status();
    EXPECT_EQ(hole.code(), Code::kDataLoss);
    EXPECT_THAT(hole.message(), HasSubstr("toy."));
    const Status damaged =
        ExportCheckpoint(files_, root_, *ParseName("step-00000004.g2"), options, out).status();
    EXPECT_EQ(damaged.code(), Code::kDataLoss);
    EXPECT_THAT(damaged.message(), HasSubstr("rank-00001-of-00002.safetensors"));
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path())) {
    const std::string path = entry.path().string();
    if (path.rfind(root_, 0) == 0) continue;
    EXPECT_TRUE(entry.is_directory()) << path;
  }
}

// ---------------------------------------------------------------- drill

TEST_F(ToolsTest, DrillPutsEverythingTogether) {
  const DrillReport report = DrillRestore(files_, root_, *ParseName("step-00000005.g2"));
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_EQ(report.tensors, 5);
  EXPECT_EQ(report.blobs, 3);
  EXPECT_EQ(report.bytes, 4 * (30 + 1 + 21 + 4 + 4) + 6 + 2 * 13);
}

TEST_F(ToolsTest, DrillFindsADamagedByteAndAHole) {
  DamageShard(PathOf("step-00000005.g2"), 0);
  EXPECT_THAT(DrillRestore(files_, root_, *ParseName("step-00000005.g2")).problems,
              ElementsAre(HasSubstr("rank-00000-of-00002.safetensors")));
  LeaveOutRank1(files_, PathOf("step-00000004.g2"));
  EXPECT_THAT(DrillRestore(files_, root_, *ParseName("step-00000004.g2")).problems,
              ElementsAre(HasSubstr("toy.")));
}

// ---------------------------------------------------------------- prune

TEST_F(ToolsTest, PruneWaitsForTheOneAtWork) {
  // This process holds the claim of generation 2.
  PruneOptions options;
  options.policy.keep_last_n = 2;
  const Status busy = PruneCheckpoints(files_, root_, options, now_).status();
  EXPECT_EQ(busy.code(), Code::kFailedPrecondition);
  EXPECT_THAT(busy.message(), HasSubstr("generation 2 is at work (process"));
  EXPECT_EQ(Committed().size(), 5u);
  EXPECT_EQ(*HighestGeneration(store_), Generation(2));
  // Looking is always allowed.
  options.dry_run = true;
  const auto looked = PruneCheckpoints(files_, root_, options, now_);
  ASSERT_TRUE(looked.ok());
  EXPECT_EQ(looked->verdicts.size(), 5u);
  EXPECT_EQ(Committed().size(), 5u);
  // Taken by force: the old holder commits no more.
  options.dry_run = false;
  options.fence = true;
  ASSERT_TRUE(PruneCheckpoints(files_, root_, options, now_).ok());
  EXPECT_EQ(CheckNotFenced(store_, Generation(2)).code(), Code::kFenced);
}

TEST_F(ToolsTest, PruneKeepsWhatIsPinnedAndWhatTheLineageNeeds) {
  WriteDeadClaim(files_, root_, Generation(3));
  ASSERT_TRUE(PinCheckpoint(store_, {Generation(1), Step(1)}, "the paper", now_).ok());
  std::filesystem::create_directory(PathOf(".tmp-step-00000006.g2-0badcafe"));
  std::filesystem::create_directory(PathOf("step-of-mine"));
  PruneOptions options;
  options.policy.keep_last_n = 2;
  const auto report = PruneCheckpoints(files_, root_, options, now_);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(Committed(), ElementsAre("step-00000001.g1", "step-00000003.g1", "step-00000004.g2",
                                       "step-00000005.g2", "step-of-mine"));
  EXPECT_THAT(report->deleted, testing::UnorderedElementsAre(".trash-step-00000002.g1",
                                                             ".trash-step-00000006.g2-0badcafe"));
  // The number is used up; the next generation goes on from what is left.
  EXPECT_EQ(*HighestGeneration(store_), Generation(4));
  Board board;
  const auto next = CheckpointEngine::ClaimNext(files_, root_, "toy", Generation(1), RealClock());
  ASSERT_EQ(*next, Generation(5));
  ToyRank rank(board, 0, 1, *next, files_, ToyOptions(root_));
  // One rank cannot take over what two had of their own.
  EXPECT_THAT(rank.opened.message(), HasSubstr("every rank has its own"));
}

TEST_F(ToolsTest, PruneCannotLookAtAnotherMachine) {
  const std::string text = SealJson(
      "{\n\"generation\": 3,\n\"claimant\": \"00\",\n\"host\": \"far-away.invalid\",\n"
      "\"pid\": 2000000000,\n\"created\": \"2026-01-01T00:00:00Z\",\n");
  ASSERT_TRUE(store_.Create("lineage/g3.claim", text).ok());
  const Status status = PruneCheckpoints(files_, root_, PruneOptions(), now_).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("may be at work on far-away.invalid"));
  EXPECT_THAT(status.message(), HasSubstr("--fence"));
}

}  // namespace
}  // namespace perdure
