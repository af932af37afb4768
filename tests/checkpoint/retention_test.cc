// Which checkpoints may go: the pure plan by table and at random, then the deleter and pins on a
// disk.
#include "checkpoint/retention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/posix.h"
#include "checkpoint/claim.h"
#include "checkpoint/deleter.h"
#include "checkpoint/names.h"
#include "checkpoint/pins.h"
#include "storage/file_store.h"
#include "storage/posix_files.h"
#include "support.h"
#include "support/temp_dir.h"

namespace perdure {
namespace {

CheckpointId At(std::int64_t generation, std::int64_t step) {
  return {Generation(generation), Step(step)};
}

// ---------------------------------------------------------------- the plan

enum class How : std::uint8_t { kGood, kBad, kPinned };

struct Row {
  CheckpointId id;
  How how = How::kGood;
  bool retire = false;
  const char* reason;  // a part of it
};

struct Case {
  const char* name;
  Lineage lineage;
  RetentionPolicy policy;
  std::vector<Row> rows;
};

std::vector<Case> Cases() {
  const Lineage alone = {{Generation(1), std::nullopt}};
  const Lineage forked = {{Generation(3), std::nullopt}, {Generation(1), Step(50)}};
  return {
      {"the newest stay, the order is that of steps",
       alone,
       {2, 0},
       {{At(1, 30), How::kGood, false, "newest 2"},
        {At(1, 10), How::kGood, true, "older than the newest 2"},
        {At(1, 20), How::kGood, false, "newest 2"}}},
      {"fewer than asked: none goes",
       alone,
       {3, 0},
       {{At(1, 10), How::kGood, false, "fewer than 3"},
        {At(1, 20), How::kGood, false, "fewer than 3"}}},
      {"a damaged one does not count, and goes when it is old",
       alone,
       {2, 0},
       {{At(1, 10), How::kBad, true, "older than"},
        {At(1, 20), How::kGood, false, "newest 2"},
        {At(1, 30), How::kBad, false, "damaged"},
        {At(1, 40), How::kGood, false, "newest 2"}}},
      {"pinned ones stay, on the lineage and off it, and do not replace a newest one",
       forked,
       {2, 0},
       {{At(1, 10), How::kPinned, false, "pinned"},
        {At(1, 60), How::kPinned, false, "pinned"},
        {At(3, 60), How::kGood, false, "newest 2"},
        {At(3, 70), How::kGood, false, "newest 2"}}},
      {"what the generation began from is the last that was read back",
       forked,
       {2, 0},
       {{At(1, 40), How::kGood, true, "older than"},
        {At(1, 50), How::kGood, false, "read back whole"},
        {At(3, 60), How::kGood, false, "newest 2"},
        {At(3, 70), How::kGood, false, "newest 2"}}},
      {"a number is no order: generation 3 at step 60 is newer than generation 1 at step 90",
       forked,
       {2, 0},
       {{At(1, 90), How::kGood, true, "no lineage leads to it"},
        {At(3, 60), How::kGood, false, "newest 2"},
        {At(3, 70), How::kGood, false, "newest 2"}}},
      {"off the lineage waits for generation 3 to have its own",
       forked,
       {2, 0},
       {{At(1, 90), How::kGood, false, "has 1 of 2"},
        {At(1, 50), How::kGood, false, "newest 2"},
        {At(3, 60), How::kGood, false, "newest 2"}}},
      {"a newer generation's are not ours to judge",
       forked,
       {2, 0},
       {{At(4, 60), How::kGood, false, "generation 4 is newer than 3"},
        {At(3, 60), How::kGood, false, "newest 2"},
        {At(3, 70), How::kGood, false, "newest 2"}}},
      {"the first good one at or after each multiple",
       alone,
       {1, 100},
       {{At(1, 20), How::kGood, true, "older than"},
        {At(1, 100), How::kGood, false, "step 100"},
        {At(1, 120), How::kGood, true, "older than"},
        {At(1, 200), How::kBad, true, "older than"},
        {At(1, 220), How::kGood, false, "step 200"},
        {At(1, 240), How::kGood, true, "older than"},
        {At(1, 300), How::kGood, false, "newest 1"}}},
      {"after a fork the multiple belongs to the lineage",
       {{Generation(3), std::nullopt}, {Generation(2), Step(140)}, {Generation(1), Step(110)}},
       {1, 100},
       {{At(1, 100), How::kGood, false, "step 100"},
        {At(1, 120), How::kGood, true, "no lineage"},
        {At(2, 120), How::kGood, true, "older than"},
        {At(2, 140), How::kGood, false, "read back whole"},
        {At(3, 210), How::kGood, false, "newest 1"}}},
  };
}

TEST(RetentionPlan, ByTable) {
  for (const Case& one : Cases()) {
    SCOPED_TRACE(one.name);
    std::vector<KeptCheckpoint> checkpoints;
    for (const Row& row : one.rows) {
      checkpoints.push_back({row.id, row.how != How::kBad, row.how == How::kPinned});
    }
    const auto verdicts = PlanRetention(one.lineage, checkpoints, one.policy);
    ASSERT_EQ(verdicts.size(), one.rows.size());
    for (const Row& row : one.rows) {
      const auto verdict = std::find_if(verdicts.begin(), verdicts.end(),
                                        [&](const auto& v) { return v.id == row.id; });
      ASSERT_NE(verdict, verdicts.end());
      EXPECT_EQ(verdict->retire, row.retire) << CommittedName(row.id) << ": " << verdict->reason;
      EXPECT_NE(verdict->reason.find(row.reason), std::string::npos)
          << CommittedName(row.id) << ": " << verdict->reason;
    }
  }
  EXPECT_TRUE(PlanRetention({}, {{At(1, 1), true, false}}, {}).empty());
}

TEST(RetentionPlan, NeverLeavesFewerThanAskedNorTakesWhatIsKept) {
  const std::uint64_t seed = RandomU64();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 500; ++round) {
    const Lineage lineage = {{Generation(3), std::nullopt}, {Generation(1), Step(50)}};
    std::vector<KeptCheckpoint> kept;
    for (std::int64_t generation = 1; generation <= 4; ++generation) {
      for (std::int64_t step = 0; step < 100; step += 10) {
        if (random() % 3 == 0) {
          kept.push_back({At(generation, step), random() % 4 != 0, random() % 6 == 0});
        }
      }
    }
    std::shuffle(kept.begin(), kept.end(), random);
    const int keep = 1 + static_cast<int>(random() % 4);
    const auto verdicts = PlanRetention(lineage, kept, {keep, 0});
    int good = 0;
    int left = 0;
    for (const KeptCheckpoint& checkpoint : kept) {
      const auto verdict = std::find_if(verdicts.begin(), verdicts.end(),
                                        [&](const auto& v) { return v.id == checkpoint.id; });
      ASSERT_NE(verdict, verdicts.end());
      if (verdict->retire) {
        ASSERT_FALSE(checkpoint.pinned);
        ASSERT_LE(checkpoint.id.generation, Generation(3));
        ASSERT_NE(checkpoint.id, At(1, 50));
      }
      if (!checkpoint.good || !Contains(lineage, checkpoint.id)) continue;
      ++good;
      left += verdict->retire ? 0 : 1;
    }
    ASSERT_GE(left, std::min(good, keep));
  }
}

// ---------------------------------------------------------------- on a disk

class DeleterTest : public testing::Test {
 protected:
  // One generation of one rank that saves every step from where it begins to `last`.
  void RunTo(std::int64_t last, int keep_every_steps = 0) {
    const auto generation =
        CheckpointEngine::ClaimNext(files_, root_, "toy", Generation(1), RealClock());
    ASSERT_TRUE(generation.ok());
    Board board;
    CheckpointOptions options = ToyOptions(root_);
    options.interval_steps = 1;
    options.keep_every_steps = keep_every_steps;
    ToyRank rank(board, 0, 1, *generation, files_, options);
    ASSERT_TRUE(rank.opened.ok()) << rank.opened.ToString();
    for (std::int64_t step = rank.report.next_step; step <= last; ++step) {
      rank.state->Set(step);
      ASSERT_TRUE(rank.engine->EndStep(step).ok());
    }
    ASSERT_TRUE(rank.engine->Close(In(30)).ok());
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(root_)) {
      const std::string name = entry.path().filename().string();
      if (name.find("step-") != std::string::npos) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  Status PinIt(const CheckpointId& id) {
    return PinCheckpoint(store_, id, "a test", RealClock().WallNow());
  }

  TempDir dir_;
  PosixFiles files_;
  const std::string root_ = dir_ / "checkpoints";
  FileStore store_{files_, root_};
};

TEST_F(DeleterTest, APinOutlivesRestartsAndIsLifted) {
  RunTo(2);
  ASSERT_TRUE(PinIt(At(1, 1)).ok());
  EXPECT_TRUE(PinIt(At(1, 1)).ok()) << "pinning twice is fine";
  RunTo(6);
  RunTo(9);
  EXPECT_EQ(Names(),
            (std::vector<std::string>{".trash-step-00000007.g3", "step-00000001.g1",
                                      "step-00000006.g2", "step-00000008.g3", "step-00000009.g3"}));
  const auto pins = ReadPins(store_);
  ASSERT_TRUE(pins.ok());
  ASSERT_EQ(pins->size(), 1u);
  EXPECT_EQ(pins->begin()->second.reason, "a test");
  EXPECT_TRUE(UnpinCheckpoint(store_, At(1, 1)).ok());
  EXPECT_EQ(UnpinCheckpoint(store_, At(1, 1)).code(), Code::kNotFound);
  RunTo(11);
  EXPECT_EQ(Names(),
            (std::vector<std::string>{"step-00000009.g3", "step-00000010.g4", "step-00000011.g4"}));
}

TEST_F(DeleterTest, APinWhoseContentHasDecayedStillHolds) {
  RunTo(2);
  ASSERT_TRUE(PinIt(At(1, 1)).ok());
  std::ofstream(root_ + "/pins/step-00000001.g1.pin") << "rubbish";
  std::ofstream(root_ + "/pins/step-1.g1.pin") << "not one of ours";
  RunTo(6);
  EXPECT_TRUE(std::filesystem::exists(root_ + "/step-00000001.g1/manifest.json"));
  EXPECT_EQ(ReadPins(store_)->size(), 1u);
}

TEST_F(DeleterTest, OnlyWhatIsThereCanBePinned) {
  RunTo(3);
  EXPECT_EQ(PinIt(At(1, 77)).code(), Code::kNotFound);
  EXPECT_EQ(PinIt(At(1, 1)).code(), Code::kNotFound) << "retired";
  EXPECT_TRUE(ReadPins(store_)->empty());
}

// Retired in the moment between the pin and the look that follows it: what the crash of a deleter
// leaves, and what its next step finds.
TEST_F(DeleterTest, APinnedCheckpointInTheTrashComesBackBeforeAnythingIsDeleted) {
  RunTo(3);
  ASSERT_TRUE(PinIt(At(1, 2)).ok());
  std::filesystem::rename(root_ + "/step-00000002.g1", root_ + "/.trash-step-00000002.g1");
  std::ofstream(root_ + "/step-00000002.g1.note") << "somebody else's";
  RunTo(5);
  EXPECT_TRUE(std::filesystem::exists(root_ + "/step-00000002.g1/manifest.json"));
  EXPECT_TRUE(std::filesystem::exists(root_ + "/step-00000002.g1.note"));
}

TEST_F(DeleterTest, EveryKthStays) {
  RunTo(9, 4);
  EXPECT_EQ(Names(), (std::vector<std::string>{".trash-step-00000007.g1", "step-00000004.g1",
                                               "step-00000008.g1", "step-00000009.g1"}));
}

TEST_F(DeleterTest, AFencedClaimDeletesNothing) {
  RunTo(3);
  ASSERT_TRUE(CheckpointEngine::ClaimNext(files_, root_, "toy", Generation(1), RealClock()).ok());
  const auto before = Names();
  const DeleterOptions options{root_, ReadRootFile(store_)->root_id, Generation(1), {1, 0}};
  const Lineage lineage = {{Generation(1), std::nullopt}};
  EXPECT_EQ(RunRetention(files_, options, lineage).status().code(), Code::kFenced);
  EXPECT_EQ(Names(), before);
}

}  // namespace
}  // namespace perdure
