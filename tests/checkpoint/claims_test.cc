// Who owns a root: numbers that are lost, claimants that die young, two jobs on one directory. What
// happens step by step between two living generations is in race_test.cc.
#include <gtest/gtest.h>

#include <random>

#include "base/log.h"
#include "base/posix.h"
#include "checkpoint/claim.h"
#include "generation.h"
#include "storage/faulty_files.h"
#include "storage/faulty_store.h"
#include "storage/memory_store.h"
#include "storage/recording_files.h"
#include "support/turn_files.h"

namespace perdure {
namespace {

constexpr const char* kClaimedRoot = "/checkpoints";

// Claim, fork and nothing else needs this many storage steps at most.
constexpr std::int64_t kStepsToFork = 30;

class ClaimsTest : public testing::Test {
 protected:
  Generation Claim(Generation at_least) {
    const Result<Generation> claimed =
        CheckpointEngine::ClaimNext(files_, kClaimedRoot, "toy", at_least, RealClock());
    EXPECT_TRUE(claimed.ok()) << claimed.status().ToString();
    return claimed.ok() ? *claimed : Generation(0);
  }

  RecordingFiles files_;
};

TEST_F(ClaimsTest, ALostJournalDoesNotBringANumberBack) {
  ASSERT_TRUE(RunGeneration(files_, kClaimedRoot, 1, 2).status.ok());
  ASSERT_TRUE(RunGeneration(files_, kClaimedRoot, 1, 1).status.ok());
  // The supervisor's state directory is gone: it counts from 1 again.
  const Status claimed =
      CheckpointEngine::Claim(files_, kClaimedRoot, "toy", Generation(1), RealClock());
  EXPECT_EQ(claimed.code(), Code::kFenced);
  EXPECT_NE(claimed.message().find("generation 2"), std::string::npos) << claimed.message();
  EXPECT_EQ(Claim(Generation(1)), Generation(3));
  // A journal that is ahead of the root is believed.
  EXPECT_EQ(Claim(Generation(9)), Generation(9));
  const Ran next = RunGeneration(files_, kClaimedRoot, 1, 0);
  ASSERT_TRUE(next.status.ok()) << next.status.ToString();
  EXPECT_EQ(next.report.next_step, 3) << "claims without a fork change nothing";
  EXPECT_EQ(next.report.from_generation, Generation(2));
}

// Each dies at some storage step on the way to its fork, and never takes another one.
TEST_F(ClaimsTest, ClaimantsThatDieOnTheWayToTheirForksOneAfterAnother) {
  ASSERT_TRUE(RunGeneration(files_, kClaimedRoot, 1, 3).status.ok());
  const std::uint64_t seed = RandomU64();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  std::int64_t newest = 2;
  for (int round = 0; round < 12; ++round) {
    const int deaths = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < deaths; ++i) {
      FaultyFiles dying(files_);
      dying.Set({{.first_step = 1 + static_cast<std::int64_t>(random() % kStepsToFork)}});
      static_cast<void>(RunGeneration(dying, kClaimedRoot, 1, 0));
    }
    const Ran next = RunGeneration(files_, kClaimedRoot, 1, 1);
    ASSERT_TRUE(next.status.ok()) << next.status.ToString();
    EXPECT_TRUE(next.state_right);
    EXPECT_EQ(next.report.next_step, newest + 1);
    newest = next.report.next_step;
  }
}

// Every place at which the second job can come in while the first one makes the root.
TEST_F(ClaimsTest, TwoJobsNeverShareARoot) {
  std::size_t steps = 1;
  for (std::size_t at = 1; at <= steps; ++at) {
    SCOPED_TRACE(at);
    RecordingFiles files;
    Turns turns(2, 0, {{at, 1}});
    turns.Begin();
    Status claimed[2];
    RunRanks(2, [&](int actor) {
      turns.Start(actor);
      TurnFiles view(files, turns, actor);
      claimed[actor] =
          CheckpointEngine::ClaimNext(view, kClaimedRoot, actor == 0 ? "mine" : "yours",
                                      Generation(1), RealClock())
              .status();
      turns.Finish(actor);
    });
    steps = std::max(steps, turns.steps());
    ASSERT_NE(claimed[0].ok(), claimed[1].ok());
    const int loser = claimed[0].ok() ? 1 : 0;
    EXPECT_EQ(claimed[loser].code(), Code::kFailedPrecondition) << claimed[loser].ToString();
    const std::string owner = loser == 0 ? "\"yours\"" : "\"mine\"";
    EXPECT_NE(claimed[loser].message().find(owner), std::string::npos) << claimed[loser].message();
  }
  EXPECT_GT(steps, 10u);
}

// A node whose mount is missing makes no root of its own: only rank 0 does, and the others compare.
TEST_F(ClaimsTest, ANodeThatSeesAnotherRootIsNamedBeforeAnythingIsSaved) {
  RecordingFiles other;  // the local disk under a missing mount, with an older root of the same job
  ASSERT_TRUE(RunGeneration(other, kClaimedRoot, 1, 2).status.ok());
  const std::string before = other.Current().Image();
  const Generation generation = Claim(Generation(1));
  Board board;
  RunRanks(3, [&](int r) {
    MemoryGroup group(board, Rank(r), 3, generation);
    Files& seen = r == 2 ? static_cast<Files&>(other) : files_;
    const Status opened =
        CheckpointEngine::Open(ToyOptions(kClaimedRoot), group, seen, RealClock(), {}, In(20))
            .status();
    EXPECT_EQ(opened.code(), Code::kFailedPrecondition) << opened.ToString();
    EXPECT_NE(opened.message().find("rank 2 does not see"), std::string::npos) << opened.message();
  });
  EXPECT_EQ(other.Current().Image(), before);
}

// A store that has no directories and no rename, on a network that loses a call or an answer: a
// number is given once, a fork is written once, and what failed can be done again.
TEST(ClaimsOnAStore, ACallOrItsAnswerIsLost) {
  const WallTime now = RealClock().WallNow();
  for (const bool takes_effect : {false, true}) {
    std::int64_t n = 1;
    for (;; ++n) {
      SCOPED_TRACE(testing::Message() << "call " << n << (takes_effect ? ", its answer" : ""));
      MemoryStore memory;
      ASSERT_TRUE(PublishClaim(memory, "toy", Generation(1), now).ok());
      ASSERT_TRUE(WriteFork(memory, {Generation(1), std::nullopt, "", {}, {}}).ok());
      FaultyStore network(memory);
      network.Set({{.first_call = n, .last_call = n, .takes_effect = takes_effect}});
      const Status mine = PublishClaim(network, "toy", Generation(2), now);
      const Status theirs = PublishClaim(memory, "toy", Generation(2), now);
      EXPECT_FALSE(mine.ok() && theirs.ok()) << "one number for two";
      EXPECT_TRUE(theirs.ok() || theirs.code() == Code::kFenced) << theirs.ToString();
      EXPECT_TRUE(mine.ok() || mine.code() == Code::kUnavailable) << mine.ToString();

      const Fork fork{Generation(2), CheckpointId{Generation(1), Step(5)}, "", {}, {}};
      Status forked = WriteFork(network, fork);
      if (!forked.ok()) forked = WriteFork(network, fork);
      EXPECT_TRUE(forked.ok()) << forked.ToString();
      EXPECT_EQ(ReadForks(memory)->size(), 2u);
      EXPECT_EQ(CheckNotFenced(memory, Generation(1)).code(), Code::kFenced);
      EXPECT_EQ(WriteFork(memory, {Generation(1), std::nullopt, "late", {}, {}}).code(),
                Code::kFenced);
      if (network.calls() < n) break;
    }
    EXPECT_GT(n, 6);
  }
}

TEST(ClaimsOnAStore, TwoJobsNeverShareOne) {
  MemoryStore memory;
  const WallTime now = RealClock().WallNow();
  ASSERT_TRUE(PublishClaim(memory, "mine", Generation(1), now).ok());
  const Status theirs = PublishClaim(memory, "yours", Generation(2), now);
  EXPECT_EQ(theirs.code(), Code::kFailedPrecondition);
  EXPECT_NE(theirs.message().find("job \"mine\", not of \"yours\""), std::string::npos)
      << theirs.message();
  EXPECT_EQ(*HighestGeneration(memory), Generation(1));
}

}  // namespace
}  // namespace perdure
