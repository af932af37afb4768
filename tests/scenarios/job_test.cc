// Whole jobs with faults in them: supervisor, agents and four ranks that link the library, on two
// simulated nodes. The ranks check their state by arithmetic, so exit code 0 says that each step
// counted exactly once, whatever was interrupted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "support/job.h"

namespace perdure {
namespace {

using testing::HasSubstr;
using testing::Not;

// For a job with a fault in it.
Deadline Patiently() {
  return Deadline::After(std::chrono::seconds(120));
}

class Scenario : public JobTest {
 protected:
  void Start(const std::string& arguments, const std::string& fault_tolerance = "",
             const std::string& interval = "interval_steps: 10") {
    WriteJobFile(
        "  command: [" DRILL_BINARY ", " + arguments +
        "]\n"
        "  launch: {nodes: 2, spares: 1, ranks_per_node: 2}\n"
        "  checkpoint: {directory: checkpoints, " +
        interval +
        "}\n"
        "  fault_tolerance: {heartbeat_timeout_s: 5, deadlines: {init: 60}, stop_grace_s: 2" +
        fault_tolerance + "}\n");
    Run();
  }

  void ExpectEnd(int code) {
    EXPECT_EQ(run_->Wait(Patiently()), code) << run_->Output();
    EXPECT_EQ(Left(), std::vector<std::string>());
  }

  // The fault drills of the command line, against the running job.
  void Chaos(std::vector<std::string> words) {
    ASSERT_TRUE(run_->WaitForOutput("begins afresh", Soon())) << run_->Output();
    words.insert(words.begin(), "chaos");
    words.insert(words.end(), {"--state", state_});
    const Answer answer = Ask(words);
    EXPECT_EQ(answer.code, 0) << answer.text;
  }
};

TEST_F(Scenario, AKilledRankIsNamedAndTheRunGoesOn) {
  Start("--steps, \"80\", --pause-ms, \"50\"");
  Chaos({"kill", "--rank", "3", "--at-step", "25"});
  ExpectEnd(0);
  EXPECT_THAT(run_->Output(), HasSubstr("rank 3 on b was killed (signal 9)"));
  EXPECT_THAT(run_->Output(), HasSubstr("restarting all ranks as generation 2 from step"));
  EXPECT_THAT(run_->Output(), Not(HasSubstr("generation 3")));
}

// Nobody says how often to save: rank 0 chooses, and the restart goes on from what all have saved.
TEST_F(Scenario, AnIntervalThatIsChosenIsKeptByAllRanks) {
  Start("--steps, \"80\", --pause-ms, \"50\"", "", "interval: auto, max_lost_minutes: 5");
  Chaos({"kill", "--rank", "3", "--at-step", "40"});
  ExpectEnd(0);
  EXPECT_THAT(run_->Output(), HasSubstr("a checkpoint every"));
  EXPECT_THAT(run_->Output(), HasSubstr("restarting all ranks as generation 2 from step"));
  EXPECT_THAT(run_->Output(), Not(HasSubstr("generation 3")));
}

TEST_F(Scenario, AStoppedRankIsFoundByItsMissingProgress) {
  Start("--steps, \"80\", --pause-ms, \"50\"");
  Chaos({"stop", "--rank", "1", "--at-step", "25"});
  ExpectEnd(0);
  EXPECT_THAT(run_->Output(), HasSubstr("rank 1 on a is stopped"));
  EXPECT_THAT(run_->Output(), Not(HasSubstr("generation 3")));
}

// Its heartbeats go on: the helper thread is well, the loop is not.
TEST_F(Scenario, AnEndlessLoopInUserCodeIsFoundThoughHeartbeatsGoOn) {
  Start("--steps, \"40\", --pause-ms, \"20\", --fault, spin, --at, \"25\", --rank, \"2\"");
  ExpectEnd(0);
  EXPECT_THAT(run_->Output(),
              testing::ContainsRegex("rank 2 on b has not joined operation [0-9]+ of "
                                     "world: it is at step 25 in phase compute"));
  EXPECT_THAT(run_->Output(), Not(HasSubstr("generation 3")));
}

TEST_F(Scenario, ALostNodeIsReplacedByTheSpare) {
  Start("--steps, \"80\", --pause-ms, \"50\"");
  Chaos({"kill", "--node", "b", "--at-step", "25"});
  ExpectEnd(0);
  EXPECT_THAT(run_->Output(), HasSubstr("starting generation 2: 4 ranks on a, c"));
}

TEST_F(Scenario, AKilledSupervisorDisturbsNoRank) {
  Start("--steps, \"100\", --pause-ms, \"50\"");
  Chaos({"kill", "--supervisor", "--at-step", "25"});
  ExpectEnd(0);
  EXPECT_THAT(run_->Output(), HasSubstr("starting it again"));
  EXPECT_THAT(run_->Output(), Not(HasSubstr("starting generation 2")));  // SUP-5
}

TEST_F(Scenario, AJobThatNeverGetsToACheckpointStopsForGood) {
  Start(
      "--steps, \"40\", --pause-ms, \"20\", --fault, throw, --at, \"5\", --rank, \"0\", --again, "
      "\"yes\"");
  ExpectEnd(93);
  EXPECT_THAT(run_->Output(), HasSubstr("the data is cursed"));
}

TEST_F(Scenario, StopTakesACheckpointAndTheNextRunGoesOnFromIt) {
  Start("--steps, \"100000\", --pause-ms, \"5\"");
  ASSERT_TRUE(run_->WaitForOutput("begins afresh", Soon())) << run_->Output();
  EXPECT_EQ(Ask({"stop", "--state", state_}).code, 0);
  ExpectEnd(0);
  EXPECT_THAT(Ask({"checkpoint", "ls", "--directory", home_ + "/checkpoints"}).text,
              HasSubstr("step-"));

  Start("--steps, \"2000\"");
  ExpectEnd(0);
  EXPECT_THAT(run_->Output(), HasSubstr("generation 2 goes on from step"));
}

}  // namespace
}  // namespace perdure
