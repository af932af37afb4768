// `perdure run` and the verbs around it, from end to end: real supervisor, agents and ranks (small
// shell programs that know nothing of the library).
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "supervisor/launch/address_file.h"
#include "support/job.h"

namespace perdure {
namespace {

class CommandLine : public JobTest {
 protected:
  void WriteJob(const std::string& script, const std::string& launch,
                const std::string& fault_tolerance = "{stop_grace_s: 1, preemption_grace_s: 2}") {
    WriteJobFile("  command: [/bin/sh, -c, '" + script + "']\n  launch: " + launch +
                 "\n  fault_tolerance: " + fault_tolerance + "\n");
  }
};

TEST_F(CommandLine, AJobThatSucceeds) {
  WriteJob("echo hello from $RANK of $WORLD_SIZE", "{nodes: 2, ranks_per_node: 2}");
  Run();
  EXPECT_EQ(run_->Wait(Soon()), 0) << run_->Output();
  EXPECT_EQ(Left(), std::vector<std::string>());
  EXPECT_NE(run_->Output().find("[rank 0] hello from 0 of 4\n"), std::string::npos);
  EXPECT_EQ(run_->Output().find("[rank 1]"), std::string::npos);  // not an error

  // A finished job still answers, from its journal.
  const Answer status = Ask({"status", "--state", state_});
  EXPECT_EQ(status.code, 0);
  EXPECT_NE(status.text.find("done"), std::string::npos) << status.text;
  EXPECT_NE(Ask({"status", "--json", "--state", state_}).text.find("\"exit_code\": 0"),
            std::string::npos);
  EXPECT_NE(Ask({"events", "--state", state_}).text.find("rank_exited"), std::string::npos);
  EXPECT_NE(Ask({"report", "--format", "json", "--state", state_}).text.find("buckets_seconds"),
            std::string::npos);
  EXPECT_EQ(Ask({"logs", "--rank", "3", "--state", state_}).text, "hello from 3 of 4\n");
  EXPECT_EQ(Ask({"logs", "--rank", "9", "--state", state_}).code, 2);
  EXPECT_EQ(Ask({"stop", "--state", state_}).code, 1);
}

TEST_F(CommandLine, AJobThatFailsSaysWhy) {
  WriteJob("echo error: boom; exit 7", "{nodes: 1, ranks_per_node: 2}",
           "{max_auto_restart: 0, stop_grace_s: 1}");
  Run();
  EXPECT_EQ(run_->Wait(Soon()), 1) << run_->Output();
  EXPECT_EQ(Left(), std::vector<std::string>());
  EXPECT_NE(run_->Output().find("error: boom"), std::string::npos) << run_->Output();
  EXPECT_NE(run_->Output().find("7"), std::string::npos);
}

TEST_F(CommandLine, CtrlCEndsInOrder) {
  WriteJob("echo $$ > $OUT/pid; exec sleep 1000", "{nodes: 1, ranks_per_node: 1}");
  Run();
  const pid_t rank = PidIn("pid");
  run_->Signal(SIGINT);
  EXPECT_EQ(run_->Wait(Soon()), 130) << run_->Output();
  EXPECT_FALSE(agent::ReadStat(rank).has_value());
  EXPECT_EQ(Left(), std::vector<std::string>());
}

TEST_F(CommandLine, CtrlCTwiceEndsAtOnce) {
  WriteJob("trap \"\" TERM; setsid sleep 1000 & echo $$ > $OUT/pid; while :; do sleep 1000; done",
           "{nodes: 1, ranks_per_node: 1}", "{stop_grace_s: 100, preemption_grace_s: 100}");
  Run();
  PidIn("pid");
  run_->Signal(SIGINT);
  EXPECT_TRUE(run_->WaitForOutput("press Ctrl-C again", Soon()));
  run_->Signal(SIGINT);
  EXPECT_EQ(run_->Wait(Soon()), 130) << run_->Output();
  EXPECT_EQ(Left(), std::vector<std::string>());
}

TEST_F(CommandLine, AKilledSupervisorComesBackAndDisturbsNoRank) {
  WriteJob("echo $$ > $OUT/pid; while [ ! -e $OUT/go ]; do sleep 0.1; done",
           "{nodes: 1, ranks_per_node: 1}");
  Run();
  const pid_t rank = PidIn("pid");
  const Result<launch::SupervisorAddress> before = launch::ReadAddressFile(state_);
  ASSERT_TRUE(before.ok());
  const Answer drill = Ask({"chaos", "kill", "--supervisor", "--state", state_});
  EXPECT_EQ(drill.code, 0) << drill.text;
  EXPECT_TRUE(run_->WaitForOutput("starting it again", Soon())) << run_->Output();
  // It answers again, under another process.
  const Deadline deadline = Soon();
  while (
      Ask({"status", "--json", "--state", state_}).text.find("\"answered_by\": \"supervisor\"") ==
      std::string::npos) {
    ASSERT_FALSE(deadline.Passed(RealClock().Now())) << run_->Output();
  }
  EXPECT_NE(launch::ReadAddressFile(state_)->pid, before->pid);
  EXPECT_TRUE(agent::ReadStat(rank).has_value());  // SUP-5
  std::ofstream(home_ + "/go") << "go\n";
  EXPECT_EQ(run_->Wait(Soon()), 0) << run_->Output();
  EXPECT_EQ(Left(), std::vector<std::string>());
}

TEST_F(CommandLine, ALostNodeIsReplacedByTheSpare) {
  WriteJob(
      "echo $$ > $OUT/pid-$PERDURE_NODE; while [ $PERDURE_GENERATION = 1 ]; do sleep 0.1; done",
      "{nodes: 1, spares: 1, ranks_per_node: 1}");
  Run();
  const pid_t rank = PidIn("pid-a");
  const Answer drill = Ask({"chaos", "kill", "--node", "a", "--state", state_});
  EXPECT_EQ(drill.code, 0) << drill.text;
  EXPECT_EQ(run_->Wait(Soon()), 0) << run_->Output();
  EXPECT_FALSE(agent::ReadStat(rank).has_value());
  EXPECT_TRUE(WaitForFile("pid-b"));
  EXPECT_EQ(Left(), std::vector<std::string>());
}

TEST_F(CommandLine, AKilledForegroundTakesEverythingWithIt) {
  // Orphans come here, so that this test sees zombies reaped and nothing escapes it.
  WriteJob("echo $$ > $OUT/pid; exec sleep 1000", "{nodes: 1, ranks_per_node: 1}");
  Run();
  PidIn("pid");
  run_->Signal(SIGKILL);
  EXPECT_EQ(run_->Wait(Soon()), 128 + SIGKILL);
  EXPECT_TRUE(WaitNothingLeft());
}

TEST_F(CommandLine, WrongUsageIsOneLine) {
  const auto expect_usage = [&](std::vector<std::string> words, const std::string& part) {
    const Answer answer = Ask(words);
    EXPECT_EQ(answer.code, 2) << answer.text;
    EXPECT_NE(answer.text.find(part), std::string::npos) << answer.text;
    EXPECT_EQ(std::count(answer.text.begin(), answer.text.end(), '\n'), 1) << answer.text;
  };
  expect_usage({}, "A subcommand is required");
  expect_usage({"fly"}, "fly");
  expect_usage({"run"}, "job");
  expect_usage({"run", home_ + "/missing.yaml"}, "missing.yaml");
  expect_usage({"logs", "--state", home_}, "--rank");
  expect_usage({"chaos", "kill", "--rank", "1", "--node", "a"}, "one target");
  expect_usage({"status", "--state", home_ + "/nowhere"}, "nowhere");
  expect_usage({"agent", "--supervisor", "10.0.0.1:80", "--state", home_}, "TLS");
  WriteJob("true", "{nodes: 1, ranks_per_nod: 1}");
  expect_usage({"run", home_ + "/job.yaml"}, "ranks_per_node");
  std::ofstream(home_ + "/job.yaml") << "training_job:\n  name: job\n  command: [./missing]\n"
                                     << "  launch: {nodes: 1, ranks_per_node: 1}\n";
  expect_usage({"run", home_ + "/job.yaml"}, "missing");
  EXPECT_EQ(Ask({"--help"}).code, 0);
  EXPECT_EQ(Ask({"chaos", "--help"}).code, 0);
  EXPECT_EQ(Left(), std::vector<std::string>());
}

TEST_F(CommandLine, OptionsMayBeWrittenWithUnderscores) {
  WriteJob("echo $WORLD_SIZE > $OUT/world", "{nodes: 1, ranks_per_node: 1}");
  Run({"--ranks_per_node=3"});
  EXPECT_EQ(run_->Wait(Soon()), 0) << run_->Output();
  EXPECT_EQ(Read("world"), "3\n");
}

}  // namespace
}  // namespace perdure
