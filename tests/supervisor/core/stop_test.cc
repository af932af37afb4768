// Preemption, stop, drills, and a supervisor that is killed and comes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "supervisor/core/script.h"

namespace perdure::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

void AllLeave(Script& script, int code, Code said, bool durable) {
  for (int rank = 0; rank < 4; ++rank) script.Left(rank, code, said, "", durable);
  for (const char* node : {"a", "b"}) {
    script.Feed(GenerationEnded{Generation(script.generation()), {}}, node, true);
  }
}

TEST(Stop, SignalMeansOneCoordinatedCheckpointAnd143) {
  Script script = RunningJob();
  script.Signal(15);
  EXPECT_THAT(script.TakeEffects(), ElementsAre("preempt g1 on a", "preempt g1 on b"));
  script.Committed(8);
  AllLeave(script, 143, Code::kPreempted, true);
  EXPECT_EQ(script.exit_code(), 143);
  EXPECT_THAT(script.last(), HasSubstr("everything is durable, up to step 8"));
  script.CheckReplay();
}

TEST(Stop, ByAPersonIsZero) {
  Script script = RunningJob();
  script.Stop("maintenance");
  AllLeave(script, 143, Code::kPreempted, true);
  EXPECT_EQ(script.exit_code(), 0);
}

TEST(Stop, NotDurableIsOne) {
  Script script = RunningJob();
  script.Signal(15);
  AllLeave(script, 1, Code::kPreempted, false);
  EXPECT_EQ(script.exit_code(), 1);
}

TEST(Stop, TwiceMeansAtOnce) {
  Script script = RunningJob();
  script.Signal(2);
  script.Signal(2);
  EXPECT_EQ(script.exit_code(), 130);
  EXPECT_TRUE(script.durable().placed.front().gone);
}

TEST(Stop, TheCheckpointIsNotAwaitedForEver) {
  Script script = RunningJob();
  script.Signal(15);
  script.Pass(140);
  EXPECT_EQ(script.exit_code(), 1);
  script.CheckReplay();
}

TEST(Stop, BeforeAnythingRan) {
  Script script;
  script.Hello("a");
  script.Signal(2);
  EXPECT_EQ(script.exit_code(), 130);
}

TEST(Stop, WhileARestartIsUnderWay) {
  Script script = RunningJob();
  script.Stubborn("a");
  script.Killed(3, 9);
  ASSERT_EQ(script.phase(), JobPhase::kStopping);
  script.Stop("enough");
  script.Pass(40);
  EXPECT_EQ(script.exit_code(), 0);
  EXPECT_EQ(script.generation(), 1);
}

TEST(Drill, AtAStepAndNow) {
  Script script = RunningJob();
  ChaosRequest request;
  request.rank = Rank(3);
  request.at_step = perdure::Step(8);
  script.Chaos(request);
  EXPECT_TRUE(script.TakeEffects().empty());
  script.CompleteStep(7);
  EXPECT_TRUE(script.TakeEffects().empty());
  script.CompleteStep(8);
  EXPECT_THAT(script.TakeEffects(), ElementsAre("signal 9 to rank 3 on b"));
  script.CompleteStep(9);
  EXPECT_TRUE(script.TakeEffects().empty()) << "once";
  request.target = ChaosRequest::Target::kAgent;
  request.node = "b";
  request.at_step.reset();
  script.Chaos(request);
  EXPECT_THAT(script.TakeEffects(), ElementsAre("signal 9 to the agent of b"));
  script.CheckReplay();
}

TEST(SupervisorRestart, DisturbsNoRank) {
  Script script = RunningJob();
  script.RestartSupervisor();
  EXPECT_THAT(script.last(), HasSubstr("the supervisor is back (term 2), generation 1 goes on"));
  for (const char* node : {"a", "b", "c"}) script.Hello(node);
  script.Pass(40);
  EXPECT_EQ(script.generation(), 1) << script.transcript();
  for (const std::string& effect : script.TakeEffects()) {
    EXPECT_EQ(effect.find("stop"), std::string::npos) << effect;
  }
}

TEST(SupervisorRestart, AgentsThatDoNotComeBackAreLostAfterAWhile) {
  Script script = RunningJob();
  script.Silence("b");
  script.RestartSupervisor();
  script.Hello("a");
  script.Hello("c");
  script.Silence("b");
  script.Pass(25);
  EXPECT_EQ(script.generation(), 1) << script.transcript();
  script.Pass(10);
  EXPECT_TRUE(script.Said("node b is lost"));
  EXPECT_EQ(script.NodeOfRank(2), "c");
}

TEST(SupervisorRestart, AHalfDoneRecoveryIsFinishedNotRepeated) {
  Script script = RunningJob();
  script.Stubborn("a");
  script.Killed(3, 9);
  ASSERT_EQ(script.phase(), JobPhase::kStopping);
  script.RestartSupervisor();
  EXPECT_EQ(script.phase(), JobPhase::kStopping);
  script.TakeEffects();
  script.Hello("b");
  script.Hello("c");
  script.Hello("a");
  EXPECT_THAT(script.TakeEffects(), ElementsAre("stop g1 on a"));
  EXPECT_EQ(script.durable().restarts_used, 1);
  EXPECT_EQ(script.durable().interruptions.size(), 1u);
  script.Pass(40);
  EXPECT_EQ(script.generation(), 2);
  EXPECT_EQ(script.durable().restarts_used, 1);
  script.CheckReplay();
}

TEST(SupervisorRestart, WhatHappenedMeanwhileIsHeardOf) {
  Script script = RunningJob();
  script.Silence("b");  // its events wait at the agent
  script.RestartSupervisor();
  script.Hello("a");
  script.Hello("c");
  script.Hello("b");
  script.Killed(3, 9);
  EXPECT_EQ(script.generation(), 2);
}

TEST(SupervisorRestart, AJobThatWasDoneIsNotRunAgainUntilItWasClosed) {
  Script script = RunningJob();
  for (int rank = 0; rank < 4; ++rank) script.Left(rank, 0, Code::kOk);
  ASSERT_EQ(script.exit_code(), 0);
  script.TakeEffects();
  script.RestartSupervisor();
  EXPECT_THAT(script.TakeEffects(), testing::Contains("finish with exit code 0"));
  script.CloseJob();
  script.RestartSupervisor();
  EXPECT_THAT(script.last(), HasSubstr("tiny begins again; waiting for 2 nodes"));
  script.HelloAnew("a");
  script.HelloAnew("b");
  script.HelloAnew("c");
  EXPECT_EQ(script.phase(), JobPhase::kRunning);
  EXPECT_EQ(script.generation(), 2) << "numbers only grow";
}

TEST(AgentEvents, SentAgainAreActedUponOnce) {
  Script script = RunningJob();
  Event event;
  event.node = "b";
  event.incarnation = "b-1";
  event.number = 1;
  RankExited exited;
  exited.generation = Generation(1);
  exited.rank = Rank(3);
  exited.signal = 9;
  event.body = exited;
  script.Feed(event);
  const int after_first = script.generation();
  exited.rank = Rank(2);
  event.body = exited;  // the same number again: not news
  script.Feed(event);
  EXPECT_EQ(script.generation(), after_first);
}

}  // namespace
}  // namespace perdure::core
