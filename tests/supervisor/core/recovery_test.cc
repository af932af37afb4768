// The decision core as transcripts: launch, crash, node loss, spares, budgets, the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "supervisor/core/script.h"

namespace perdure::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Launch, WaitsForEnoughNodesAndNamesTheSpare) {
  Script script;
  script.Hello("b");
  EXPECT_EQ(script.phase(), JobPhase::kWaiting);
  script.Hello("a");
  EXPECT_EQ(script.phase(), JobPhase::kWaiting) << "spares are given a moment";
  script.Hello("c");
  EXPECT_EQ(script.phase(), JobPhase::kRunning);
  EXPECT_THAT(script.last(), HasSubstr("starting generation 1: 4 ranks on a, b; spare c"));
  EXPECT_THAT(script.TakeEffects(), ElementsAre("start g1 on a", "start g1 on b"));
  script.CheckReplay();
}

TEST(Launch, DoesNotWaitForASpareForEver) {
  Script script;
  script.Hello("c");
  script.Hello("b");
  script.Pass(3);
  EXPECT_EQ(script.phase(), JobPhase::kRunning);
  EXPECT_EQ(script.NodeOfRank(0), "b");
}

TEST(Launch, ANodeThatIsTooSmallIsNotUsed) {
  Script script;
  script.Hello("a");
  AgentHello small;
  small.node = "s";
  small.incarnation = "s-1";
  small.capacity = 1;
  script.Feed(small);
  script.Pass(5);
  EXPECT_EQ(script.phase(), JobPhase::kWaiting);
  EXPECT_TRUE(script.Said("node s has joined; it holds 1 ranks and 2 are needed"));
}

TEST(Crash, OneKilledRankRestartsAllFromTheLastCheckpoint) {
  Script script = RunningJob();
  script.Killed(3, 9);
  EXPECT_TRUE(
      script.Said("rank 3 on b was killed (signal 9) at step 7; restarting all ranks as "
                  "generation 2 from step 3"));
  EXPECT_THAT(script.transcript(),
              HasSubstr("-> class infrastructure, restart 1 of 50, blame node b (1 of 2 in 1 h), "
                        "stop g1, start g2 after 0 s"));
  EXPECT_THAT(script.TakeEffects(),
              ElementsAre("rank 3 is dead on a", "rank 3 is dead on b", "stop g1 on a",
                          "stop g1 on b", "start g2 on a", "start g2 on b"));
  EXPECT_EQ(script.NodeOfRank(3), "b") << "same ranks stay on same nodes";
  EXPECT_EQ(script.durable().generations.back().restore.mode, ResumeMode::kRequire);
  EXPECT_EQ(script.durable().restarts_used, 1);
  script.CheckReplay();
}

TEST(Crash, TheNextGenerationKnowsHowLongTheOthersRan) {
  Script script = RunningJob();
  EXPECT_EQ(script.told_past(), JobPast());
  script.Killed(3, 9);
  EXPECT_EQ(script.told_past().interruptions, 1);
  const GenerationRecord& first = script.durable().generations.front();
  EXPECT_GT(script.told_past().up, Duration::zero());
  EXPECT_EQ(script.told_past().up, *first.ended - first.decided);
}

TEST(Crash, ConsequencesAreNotBlamedAndTheFirstCauseIsAwaited) {
  Script script = RunningJob();
  // The survivors notice first.
  script.CommFails(0, CommFailure::Class::kPeerDead, {3}, "rank 3 closed its connection");
  script.Left(0, 1, Code::kCommFailed, "all_reduce failed");
  EXPECT_EQ(script.phase(), JobPhase::kJudging);
  script.Pass(0.25);
  script.Killed(3, 9);
  EXPECT_TRUE(script.Said("rank 3 on b was killed (signal 9)"));
  EXPECT_EQ(script.durable().reason->rank, Rank(3));
  EXPECT_EQ(script.durable().interruptions.size(), 1u);
  script.CheckReplay();
}

TEST(Crash, UserErrorKeepsItsText) {
  Script script = RunningJob();
  script.Left(1, 1, Code::kUserError, "std::runtime_error: bad batch");
  EXPECT_TRUE(script.Said("rank 1 on a exited with code 1: std::runtime_error: bad batch"));
  EXPECT_EQ(script.durable().user_failures, 1);
  EXPECT_TRUE(script.durable().nodes.at("a").blames.empty()) << "not the node's fault";
}

TEST(Crash, NoNewGenerationBeforeTheOldProcessesAreGone) {
  Script script = RunningJob();
  script.Stubborn("a");
  script.Killed(3, 9);
  EXPECT_EQ(script.phase(), JobPhase::kStopping);
  script.Pass(20);
  EXPECT_EQ(script.phase(), JobPhase::kStopping) << "grace and margin are not over";
  script.Pass(15);
  EXPECT_EQ(script.phase(), JobPhase::kRunning);
  EXPECT_TRUE(script.Said("node a is isolated"));
  EXPECT_EQ(script.NodeOfRank(0), "c") << "the node that keeps old processes is written off";
  script.CheckReplay();
}

TEST(NodeLoss, SpareTakesThePlace) {
  Script script = RunningJob();
  script.Disconnect("b");
  script.Pass(12);
  EXPECT_TRUE(script.Said("node b is lost: its agent has been silent for 10 s"));
  EXPECT_TRUE(script.Said("4 ranks on a, c; c takes the place of b"));
  EXPECT_EQ(script.NodeOfRank(0), "a");
  EXPECT_EQ(script.NodeOfRank(2), "c");
  script.CheckReplay();
}

TEST(NodeLoss, TwoPiecesOfEvidenceNeedNoPatience) {
  Script script = RunningJob();
  script.Disconnect("b");
  script.CommFails(0, CommFailure::Class::kPeerDead, {2}, "rank 2 closed its connection");
  script.Pass(0.5);
  EXPECT_TRUE(script.Said("node b is lost: its agent and ranks have hung up"));
  EXPECT_FALSE(script.Said("silent for 0 s"));
  EXPECT_EQ(script.generation(), 2);
}

TEST(NodeLoss, ACutOffNodeIsFencedWhenItComesBackAndParked) {
  Script script = RunningJob();
  script.Disconnect("b");
  script.Pass(12);
  ASSERT_EQ(script.generation(), 2);
  script.TakeEffects();
  script.Hello("b");  // still runs ranks 2 and 3 of g1 in its own mind
  EXPECT_TRUE(script.Said("node b is back"));
  EXPECT_EQ(script.NodeOfRank(2), "c") << "a returning node displaces nobody";
  script.CheckReplay();
}

TEST(NodeLoss, AllTogetherIsOneEvent) {
  Policy policy = SmallJob();
  policy.nodes = 8;
  policy.spares = 0;
  policy.ranks_per_node = 1;
  Script script(policy);
  for (const char* node : {"a", "b", "c", "d", "e", "f", "g", "h"}) script.Hello(node);
  script.Pass(1);
  script.CompleteStep(0);
  for (const char* node : {"b", "c", "d"}) script.Disconnect(node);
  script.Pass(12);
  EXPECT_EQ(script.durable().interruptions.size(), 1u);
  EXPECT_EQ(script.durable().restarts_used, 1);
  EXPECT_TRUE(script.Said("3 nodes are lost (b, c, d)"));
}

TEST(NodeLoss, SilenceWhileStepsGoOnIsHeld) {
  Script script = RunningJob();
  script.Disconnect("b");
  for (int step = 7; step < 37; ++step) {
    script.CompleteStep(step);  // seen through node a: ranks of b take part
    script.Pass(1);
  }
  EXPECT_EQ(script.generation(), 1) << script.transcript();
  script.Hello("b");
  EXPECT_EQ(script.generation(), 1);
  EXPECT_EQ(script.phase(), JobPhase::kRunning);
}

TEST(NodeLoss, AReplacedAgentTookItsRanksWithIt) {
  Script script = RunningJob();
  script.HelloAnew("b");
  EXPECT_TRUE(script.Said("the agent of node b was replaced; its ranks ended with it"));
  EXPECT_EQ(script.generation(), 2);
  script.CheckReplay();
}

TEST(NodeLoss, LosingASpareChangesNothing) {
  Script script = RunningJob();
  script.Disconnect("c");
  script.Pass(12);
  EXPECT_TRUE(script.Said("c is gone (silent for 10 s); no ranks were there"));
  EXPECT_EQ(script.generation(), 1);
}

TEST(Spares, MoreAgentsThanNeededAreParked) {
  Script script = RunningJob();
  script.Hello("d");
  EXPECT_TRUE(script.Said("node d has joined; parked as a spare"));
  EXPECT_EQ(script.phase(), JobPhase::kRunning);
}

TEST(Success, AllRanksDone) {
  Script script = RunningJob();
  for (int rank = 0; rank < 4; ++rank) script.Left(rank, 0, Code::kOk);
  EXPECT_EQ(script.exit_code(), 0);
  EXPECT_EQ(script.phase(), JobPhase::kDone);
  EXPECT_THAT(script.last(), HasSubstr("all 4 ranks are done after step 6"));
  script.CheckReplay();
}

TEST(Success, NotDurableIsNotDone) {
  Script script = RunningJob();
  for (int rank = 1; rank < 4; ++rank) script.Left(rank, 0, Code::kOk);
  script.Left(0, 1, Code::kUnavailable, "the last checkpoint could not be written", false);
  EXPECT_FALSE(script.exit_code().has_value());
  EXPECT_EQ(script.generation(), 2);
}

TEST(Budget, ZeroIsLegal) {
  Policy policy = SmallJob();
  policy.max_auto_restart = 0;
  Script script(policy);
  script.HelloAll();
  script.CompleteStep(0);
  script.Killed(1, 9);
  EXPECT_EQ(script.exit_code(), 1);
  EXPECT_THAT(script.last(), HasSubstr("the restart budget is used up (0 of 0)"));
  EXPECT_EQ(script.next_command(), "perdure logs --rank 1 --generation 1");
  script.CheckReplay();
}

TEST(Budget, UserErrorsAreCountedPreemptionsAreNot) {
  Policy policy = SmallJob();
  policy.max_auto_restart = 3;
  policy.max_no_progress_restarts = 100;
  Script script(policy);
  script.HelloAll();
  int step = 0;
  for (int i = 0; i < 5; ++i) {
    script.CompleteStep(step++);
    script.Left(0, 143, Code::kPreempted);
    for (int rank = 1; rank < 4; ++rank) script.Left(rank, 143, Code::kPreempted);
    for (const char* node : {"a", "b"}) {
      script.Feed(GenerationEnded{Generation(script.generation()), {}}, node, true);
    }
    script.Pass(1);
    ASSERT_EQ(script.generation(), i + 2) << script.transcript();
  }
  EXPECT_EQ(script.durable().restarts_used, 0);
  EXPECT_EQ(script.durable().preemptions, 5);
  for (int i = 0; i < 4; ++i) {
    script.CompleteStep(step++);
    script.Committed(step - 1);
    script.Left(0, 1, Code::kUserError, "bad");
    script.Pass(2);
  }
  EXPECT_EQ(script.exit_code(), 1);
  EXPECT_EQ(script.durable().restarts_used, 3);
}

TEST(Budget, RefilledAfterALongQuietTime) {
  Policy policy = SmallJob();
  policy.max_auto_restart = 1;
  policy.refill_after = std::chrono::seconds(100);
  Script script(policy);
  script.HelloAll();
  script.CompleteStep(0);
  script.Committed(0);
  script.Killed(1, 9);
  for (int step = 1; step < 120; ++step) {
    script.CompleteStep(step);
    script.Pass(1);
  }
  script.Committed(119);
  script.Killed(3, 9);
  EXPECT_FALSE(script.exit_code().has_value());
  EXPECT_EQ(script.durable().restarts_used, 1);
  EXPECT_EQ(script.durable().restarts_total, 2);
}

TEST(Budget, NoProgressStopsForGood) {
  Script script = RunningJob();
  for (int i = 0; i < 4 && !script.exit_code(); ++i) {
    script.Pass(10);
    script.CompleteStep(4 + i);
    script.Killed(i % 2 == 0 ? 3 : 0, 9);
    script.Pass(70);
  }
  EXPECT_EQ(script.exit_code(), 93);
  EXPECT_THAT(script.last(), HasSubstr("3 restarts in a row without a newer committed checkpoint"));
  EXPECT_FALSE(script.next_command().empty());
  script.CheckReplay();
}

TEST(Budget, BackoffGrowsOnlyWithoutProgress) {
  Script script = RunningJob();
  script.Killed(3, 9);
  EXPECT_EQ(script.generation(), 2) << "the first restart is at once";
  script.CompleteStep(4);
  script.Killed(0, 9);
  EXPECT_EQ(script.generation(), 2);
  EXPECT_THAT(script.transcript(), HasSubstr("start g3 after 1 s"));
  script.Pass(1.5);
  EXPECT_EQ(script.generation(), 3);
}

TEST(InstantFailure, SameOnTwoNodesStopsForGoodWithTheRealErrorFirst) {
  Script script;
  script.HelloAll();
  for (int round = 0; round < 2; ++round) {
    script.Pass(2);
    script.Exited(2, 1, "ImportError: no module named flash", 1.5);
    script.Exited(0, 1, "ImportError: no module named flash", 1.6);
    script.Pass(2);
  }
  EXPECT_EQ(script.exit_code(), 93);
  EXPECT_EQ(script.durable().reason->error_line, "ImportError: no module named flash");
  EXPECT_EQ(script.durable().reason->rank, Rank(2));
  EXPECT_THAT(script.last(),
              HasSubstr("rank 2 on b exited with code 1: ImportError: no module named flash"));
  EXPECT_EQ(script.next_command(), "perdure logs --rank 2 --generation 2");
  EXPECT_EQ(script.generation(), 2);
  script.CheckReplay();
}

TEST(InstantFailure, OnlyEverOnOneNodeIsTheNode) {
  Script script;
  script.HelloAll();
  for (int round = 0; round < 2; ++round) {
    script.Pass(2);
    script.Exited(2, 1, "cannot open device", 1.5);
    script.Pass(3);
  }
  EXPECT_FALSE(script.exit_code().has_value());
  EXPECT_TRUE(script.Said("node b is isolated"));
  EXPECT_EQ(script.NodeOfRank(2), "c");
}

TEST(Isolation, RepeatedBlameThenAWayBack) {
  Script script = RunningJob();
  script.Killed(3, 9);
  script.CompleteStep(4);
  script.Committed(4);
  script.Killed(2, 9);
  EXPECT_TRUE(script.Said("node b is isolated for 10 min: blamed 2 times in 1 h"));
  EXPECT_EQ(script.NodeOfRank(2), "c");
  int step = 5;
  for (double waited = 0; waited < 620; waited += 10) {
    script.Pass(10);
    script.CompleteStep(step++);
  }
  EXPECT_TRUE(script.Said("node b has cooled down and may be used again"));
  EXPECT_EQ(script.NodeOfRank(2), "c") << "and displaces nobody";
  script.CheckReplay();
}

TEST(Isolation, NotWithoutASpareAndBackEarlyWhenNeeded) {
  Script script = RunningJob();
  script.Killed(3, 9);
  script.CompleteStep(4);
  script.Committed(4);
  script.Killed(2, 9);  // b isolated, c takes over
  script.CompleteStep(5);
  script.Committed(5);
  script.Disconnect("a");
  script.Pass(15);
  EXPECT_TRUE(script.Said("node b returns early: without it the job would stand still"));
  EXPECT_EQ(script.phase(), JobPhase::kRunning);
  script.CheckReplay();
}

TEST(LoadCrash, TwiceMeansAvoid) {
  Script script = RunningJob();
  for (int i = 0; i < 2; ++i) {
    script.Killed(i == 0 ? 3 : 1, 9);
    script.Pass(3);
    script.SetPhase(0, Phase::kRestore);
    script.Pass(1);
  }
  script.Left(1, 139, Code::kUserError, "bad header");
  script.Pass(5);
  EXPECT_THAT(script.durable().avoid, ElementsAre("step-00000003.g1"));
  EXPECT_THAT(script.durable().generations.back().restore.avoid, ElementsAre("step-00000003.g1"));
}

TEST(Fenced, TheNextNumberIsAboveEveryClaim) {
  Script script = RunningJob();
  script.Feed(ClaimsSeen{Generation(7)});
  script.Killed(3, 9);
  EXPECT_EQ(script.generation(), 8);
}

}  // namespace
}  // namespace perdure::core
