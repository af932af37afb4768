// Silence and standstill: what is found, who is named, and what is left alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "supervisor/core/script.h"

namespace perdure::core {
namespace {

using testing::HasSubstr;

void OthersWaitFor(Script& script, int rank) {
  for (int other = 0; other < 4; ++other) {
    if (other != rank) script.SetPhase(other, Phase::kComm);
  }
}

TEST(Hang, AStoppedRankIsSuspectedThenFoundByItsStepAndNamed) {
  Script script = RunningJob(8, kNothingCommitted);
  script.Mute(2);
  script.SetProcess(2, ProcessState::kStopped);
  OthersWaitFor(script, 2);
  script.Pass(8);
  EXPECT_THAT(script.last(), HasSubstr("rank 2 on b is suspected: silent for"));
  EXPECT_EQ(script.generation(), 1) << "a step may take longer than that";
  script.Pass(16);
  EXPECT_TRUE(script.Said("no progress: rank 2 on b is at step 8"));
  EXPECT_TRUE(
      script.Said("rank 2 on b is stopped at step 8 in phase compute; ranks 0, 1 and 3 "
                  "wait for it; restarting all ranks as generation 2"))
      << script.transcript();
  EXPECT_EQ(script.durable().reason->rank, Rank(2));
  EXPECT_EQ(script.generation(), 2);
  script.CheckReplay();
}

TEST(Hang, AnEndlessLoopIsFoundThoughHeartbeatsGoOn) {
  Script script = RunningJob(8, kNothingCommitted);
  OthersWaitFor(script, 1);
  script.Pass(25);
  EXPECT_TRUE(script.Said("rank 1 on a stands still at step 8 in phase compute"))
      << script.transcript();
  EXPECT_EQ(script.durable().reason->rank, Rank(1)) << "the waiting ranks are never blamed";
}

TEST(Hang, TheFirstStepsHaveTheInitDeadline) {
  Script script = RunningJob(2, kNothingCommitted);
  OthersWaitFor(script, 1);
  script.Pass(50);
  EXPECT_EQ(script.generation(), 1) << script.transcript();
  script.Pass(15);
  EXPECT_EQ(script.generation(), 2);
}

TEST(Hang, ALongSaveIsNotAHangForThoseWhoWait) {
  Script script = RunningJob(8, kNothingCommitted);
  OthersWaitFor(script, 0);
  script.SetPhase(0, Phase::kCheckpoint);
  script.Pass(35);  // longer than any step, shorter than the checkpoint deadline
  EXPECT_EQ(script.phase(), JobPhase::kRunning) << script.transcript();
  script.Pass(10);
  EXPECT_TRUE(script.Said("rank 0 on a stands still at step 8 in phase checkpoint"))
      << script.transcript();
}

TEST(Hang, ARankThatNeverReports) {
  Script script;
  script.HelloAll();
  script.Mute(3);
  for (double waited = 0; waited < 70; waited += 1) script.Pass(1);
  EXPECT_EQ(script.durable().interruptions.size(), 1u) << script.transcript();
}

TEST(Hang, TheSupervisorsOwnSleepIsNobodysFault) {
  Script script = RunningJob(8, kNothingCommitted);
  script.Sleep(3600);
  EXPECT_EQ(script.generation(), 1) << script.transcript();
  script.Pass(5);
  EXPECT_EQ(script.phase(), JobPhase::kRunning) << script.transcript();
}

TEST(Hang, EveryGenerationStartsWithCleanPhases) {
  Script script = RunningJob(8, kNothingCommitted);
  OthersWaitFor(script, 0);
  script.SetPhase(0, Phase::kCheckpoint);
  script.Pass(30);
  script.Killed(3, 9);  // in the middle of a save
  ASSERT_EQ(script.generation(), 2);
  script.Pass(1);
  for (int step = 4; step < 12; ++step) {
    script.CompleteStep(step);
    script.Pass(2);
  }
  EXPECT_EQ(script.durable().interruptions.size(), 1u) << script.transcript();
}

TEST(Hang, NotJoinedReportedByARankIsLookedAtAtOnce) {
  Script script = RunningJob(8, kNothingCommitted);
  OthersWaitFor(script, 2);
  script.Pass(1);
  script.CommFails(0, CommFailure::Class::kNotJoined, {2}, "waiting for rank 2");
  script.Pass(1);
  EXPECT_EQ(script.durable().reason->rank, Rank(2)) << script.transcript();
  EXPECT_EQ(script.generation(), 2);
}

TEST(Hang, EvidenceThatDoesNotComeIsNotAwaitedForEver) {
  Script script = RunningJob(8, kNothingCommitted);
  script.Mute(2);
  script.SetProcess(2, ProcessState::kStopped);
  OthersWaitFor(script, 2);
  script.Pass(19);
  script.Silence("a");  // its agent does not answer; it is not lost yet
  script.Pass(8);
  EXPECT_TRUE(script.Said("collecting evidence")) << script.transcript();
  EXPECT_EQ(script.durable().reason->rank, Rank(2)) << script.transcript();
}

}  // namespace
}  // namespace perdure::core
