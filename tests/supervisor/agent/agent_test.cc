// `perdure agent` as a process, with real ranks, against the supervisor's port in this process.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/posix.h"
#include "supervisor/agent/proc.h"
#include "supervisor/agent/process_tree.h"
#include "supervisor/launch/address_file.h"
#include "support/child.h"
#include "support/temp_dir.h"
#include "wire/agent_port.h"

namespace perdure {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline Soon() {
  return Deadline::After(seconds(30));
}

bool Exists(pid_t pid) {
  const std::optional<agent::ProcessStat> stat = agent::ReadStat(pid);
  return stat.has_value() && stat->alive();
}

class AgentProcess : public testing::Test {
 protected:
  AgentProcess() : state_(std::filesystem::canonical(dir_.path()).string()) { OpenPort(); }

  ~AgentProcess() override {
    ClosePort();
    agent_.reset();
    // Nothing that a test started may outlive it.
    EXPECT_TRUE(agent::KillMarked(agent::JobMarker(state_), Soon()).empty());
  }

  void OpenPort(Duration lease = seconds(600), std::uint64_t acknowledged = 0) {
    port_ = std::make_unique<wire::GrpcAgentPort>(wire::GrpcAgentPort::Options{
        "127.0.0.1:0", "token", [this](const std::string& address) {
          return launch::WriteAddressFile(state_, {"job", address, "token", ::getpid()});
        }});
    AgentPort::Handler handler;
    handler.on_hello = [this, lease,
                        acknowledged](const AgentHello& hello) -> Result<SupervisorHello> {
      MutexLock lock(mutex_);
      hellos_.push_back(hello);
      changed_.NotifyAll();
      return SupervisorHello{1, lease, acknowledged};
    };
    handler.on_message = [this](const std::string&, const AgentMessage& message) {
      MutexLock lock(mutex_);
      if (const auto* event = std::get_if<NumberedEvent>(&message)) {
        events_.push_back(*event);
      } else {
        report_ = std::get<NodeReport>(message);
      }
      changed_.NotifyAll();
    };
    handler.on_disconnected = [](const std::string&) {};
    ASSERT_TRUE(port_->Open(std::move(handler)).ok());
  }

  void ClosePort() {
    if (port_ != nullptr) port_->Close(Deadline::After(seconds(2)));
    port_.reset();
  }

  void StartAgent() {
    agent_ = std::make_unique<Child>(
        std::vector<std::string>{PERDURE_PROGRAM, "agent", "--state", state_, "--node", "a"},
        std::map<std::string, std::string>{}, dir_ / "agent.log");
    ASSERT_TRUE(WaitUntil([this]() PERDURE_REQUIRES(mutex_) { return !hellos_.empty(); }));
  }

  bool WaitUntil(const std::function<bool()>& condition) {
    const Deadline deadline = Soon();
    MutexLock lock(mutex_);
    while (!condition()) {
      if (!changed_.WaitUntil(mutex_, deadline)) return condition();
    }
    return true;
  }

  template <class Event>
  std::vector<Event> All() {
    MutexLock lock(mutex_);
    return AllLocked<Event>();
  }

  template <class Event>
  std::vector<Event> AllLocked() PERDURE_REQUIRES(mutex_) {
    std::vector<Event> found;
    for (const NumberedEvent& event : events_) {
      if (const auto* match = std::get_if<Event>(&event.event)) found.push_back(*match);
    }
    return found;
  }

  // Waits for the `count`th event of a kind.
  template <class Event>
  bool WaitFor(std::size_t count) {
    return WaitUntil([this, count]()
                         PERDURE_REQUIRES(mutex_) { return AllLocked<Event>().size() >= count; });
  }

  std::optional<RankExited> ExitOf(Rank rank) {
    for (const RankExited& exited : All<RankExited>()) {
      if (exited.rank == rank) return exited;
    }
    return std::nullopt;
  }

  StartRanks Start(Generation generation, std::vector<std::string> command, int ranks = 1) {
    StartRanks start;
    start.generation = generation;
    start.world_size = ranks;
    start.local_world_size = ranks;
    start.master_addr = "127.0.0.1";
    start.master_port = 29500;
    start.command = std::move(command);
    start.env = {{"OUT", dir_.path()}};
    start.working_directory = dir_.path();
    start.stop_grace = milliseconds(300);
    for (int i = 0; i < ranks; ++i) start.ranks.push_back({Rank(i), i});
    EXPECT_TRUE(port_->Send("a", start));
    return start;
  }

  StartRanks Shell(Generation generation, const std::string& script, int ranks = 1) {
    return Start(generation, {"/bin/sh", "-c", script}, ranks);
  }

  bool StopAndWait(Generation generation, Duration grace, std::size_t ends = 1) {
    EXPECT_TRUE(port_->Send("a", StopGeneration{generation, true, "test", grace}));
    return WaitFor<GenerationEnded>(ends);
  }

  std::string File(const std::string& name) {
    const Result<std::string> text = ReadSmallFile(dir_ / name);
    return text.ok() ? *text : "";
  }

  bool WaitForText(const std::string& name, const std::string& text) {
    const Deadline deadline = Soon();
    while (File(name).find(text) == std::string::npos) {
      if (deadline.Passed(RealClock().Now())) return false;
      ::poll(nullptr, 0, 5);
    }
    return true;
  }

  pid_t PidIn(const std::string& name) {
    EXPECT_TRUE(WaitForText(name, "\n")) << name;
    return static_cast<pid_t>(std::stol(File(name)));
  }

  bool WaitGone(pid_t pid) {
    const Deadline deadline = Soon();
    while (Exists(pid)) {
      if (deadline.Passed(RealClock().Now())) return false;
      ::poll(nullptr, 0, 5);
    }
    return true;
  }

  TempDir dir_;
  const std::string state_;
  std::unique_ptr<wire::GrpcAgentPort> port_;
  std::unique_ptr<Child> agent_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<AgentHello> hellos_ PERDURE_GUARDED_BY(mutex_);
  std::vector<NumberedEvent> events_ PERDURE_GUARDED_BY(mutex_);
  NodeReport report_ PERDURE_GUARDED_BY(mutex_);
};

TEST_F(AgentProcess, ExitCodesSignalsAndLastWords) {
  StartAgent();
  Shell(Generation(1),
        "case $RANK in 0) echo fine;; 1) echo begin; echo 'error: boom'; echo end; exit 7;; "
        "2) kill -9 $$;; esac",
        3);
  ASSERT_TRUE(WaitFor<RankExited>(3));
  EXPECT_EQ(ExitOf(Rank(0))->exit_code, 0);
  EXPECT_EQ(ExitOf(Rank(0))->last_error_line, "");
  EXPECT_EQ(ExitOf(Rank(1))->exit_code, 7);
  EXPECT_EQ(ExitOf(Rank(1))->last_error_line, "error: boom");
  EXPECT_EQ(ExitOf(Rank(2))->signal, 9);
  EXPECT_FALSE(ExitOf(Rank(2))->exit_code.has_value());
  EXPECT_EQ(File("logs/g1/rank-0.log"), "fine\n");
  EXPECT_EQ(File("logs/g1/rank-1.log"), "begin\nerror: boom\nend\n");
}

TEST_F(AgentProcess, CommandNotFoundIsSaidByName) {
  StartAgent();
  Start(Generation(1), {"no-such-program", "x"});
  ASSERT_TRUE(WaitFor<RankStartFailed>(1));
  EXPECT_NE(All<RankStartFailed>()[0].reason.find("\"no-such-program\" was not found"),
            std::string::npos);
  EXPECT_TRUE(All<RankExited>().empty());
  EXPECT_TRUE(StopAndWait(Generation(1), seconds(1)));
  Start(Generation(2), {"./relative/missing"});
  ASSERT_TRUE(WaitFor<RankStartFailed>(2));
  EXPECT_NE(All<RankStartFailed>()[1].reason.find("relative/missing"), std::string::npos);
  EXPECT_TRUE(StopAndWait(Generation(2), seconds(1), 2));
  StartRanks start;
  start.generation = Generation(3);
  start.command = {"true"};
  start.working_directory = "/no/such/directory";
  start.ranks = {{Rank(0), 0}};
  ASSERT_TRUE(port_->Send("a", start));
  ASSERT_TRUE(WaitFor<RankStartFailed>(3));
  EXPECT_NE(All<RankStartFailed>()[2].reason.find("/no/such/directory"), std::string::npos);
}

TEST_F(AgentProcess, TheWholeTreeAndNothingElse) {
  StartAgent();
  Child bystander({"/bin/sleep", "1000"}, {}, dir_ / "bystander.log");
  // A child, one with a session of its own, an orphan of one, and one that forgot its environment.
  Shell(Generation(1),
        "sleep 1001 & echo $! > $OUT/child; "
        "setsid sh -c 'echo $$ > $OUT/session; exec sleep 1002' & "
        "(setsid sh -c 'echo $$ > $OUT/orphan; exec sleep 1003' &) ; "
        "(OUT=$OUT; env -i setsid sh -c \"echo \\$\\$ > $OUT/bare; exec sleep 1004\" &) ; "
        "wait");
  const std::vector<pid_t> pids = {PidIn("child"), PidIn("session"), PidIn("orphan"),
                                   PidIn("bare")};
  for (const pid_t pid : pids) EXPECT_TRUE(Exists(pid));
  ASSERT_TRUE(StopAndWait(Generation(1), seconds(5)));
  for (const pid_t pid : pids) EXPECT_FALSE(Exists(pid));
  EXPECT_TRUE(All<GenerationEnded>()[0].unkillable.empty());
  EXPECT_EQ(All<RankExited>().size(), 1u);  // told before the generation's end
  EXPECT_TRUE(Exists(bystander.pid()));
}

TEST_F(AgentProcess, OrphansOfARankThatDiedAreEndedToo) {
  StartAgent();
  Shell(Generation(1),
        "setsid sh -c 'echo $$ > $OUT/loader; exec sleep 1001' & "
        "while [ ! -s $OUT/loader ]; do :; done; kill -9 $$");
  ASSERT_TRUE(WaitFor<RankExited>(1));
  const pid_t loader = PidIn("loader");
  EXPECT_TRUE(Exists(loader));
  ASSERT_TRUE(StopAndWait(Generation(1), seconds(5)));
  EXPECT_FALSE(Exists(loader));
}

TEST_F(AgentProcess, SigtermIgnoredIsKilledAfterTheGrace) {
  StartAgent();
  Shell(Generation(1), "trap '' TERM; echo $$ > $OUT/pid; while :; do sleep 1000; done");
  const pid_t pid = PidIn("pid");
  ASSERT_TRUE(StopAndWait(Generation(1), milliseconds(200)));
  EXPECT_FALSE(Exists(pid));
  EXPECT_EQ(ExitOf(Rank(0))->signal, SIGKILL);
}

TEST_F(AgentProcess, AStoppedRankIsSeenAndEnded) {
  StartAgent();
  Shell(Generation(1), "echo $$ > $OUT/pid; exec sleep 1000");
  const pid_t pid = PidIn("pid");
  ASSERT_TRUE(port_->Send("a", SignalRank{Generation(1), Rank(0), SIGSTOP}));
  ASSERT_TRUE(WaitUntil([this]() PERDURE_REQUIRES(mutex_) {
    return !report_.ranks.empty() && report_.ranks[0].process == ProcessState::kStopped;
  }));
  ASSERT_TRUE(port_->Send("a", CollectEvidence{Generation(1), seconds(1), "silent"}));
  ASSERT_TRUE(WaitFor<Evidence>(1));
  ASSERT_EQ(All<Evidence>()[0].texts.size(), 1u);
  EXPECT_NE(All<Evidence>()[0].texts[0].second.find("state T"), std::string::npos);
  ASSERT_TRUE(StopAndWait(Generation(1), seconds(20)));
  EXPECT_FALSE(Exists(pid));
  EXPECT_EQ(ExitOf(Rank(0))->signal, SIGTERM);  // SIGCONT first, so that SIGTERM could arrive
}

TEST_F(AgentProcess, KilledAgentTakesItsRanksAndTheNextOneTheRest) {
  StartAgent();
  Shell(Generation(1),
        "setsid sh -c 'echo $$ > $OUT/loader; exec sleep 1001' & echo $$ > $OUT/pid; wait");
  const pid_t pid = PidIn("pid");
  const pid_t loader = PidIn("loader");
  agent_->Signal(SIGKILL);
  ASSERT_EQ(agent_->Wait(Soon()), 128 + SIGKILL);
  EXPECT_TRUE(WaitGone(pid));  // PR_SET_PDEATHSIG
  {
    MutexLock lock(mutex_);
    hellos_.clear();
  }
  StartAgent();
  EXPECT_FALSE(Exists(loader));  // known by its marker
  MutexLock lock(mutex_);
  EXPECT_TRUE(hellos_[0].running.empty());
}

TEST_F(AgentProcess, LogsOfTwoGenerationsAreKept) {
  StartAgent();
  Shell(Generation(1), "echo first");
  ASSERT_TRUE(WaitFor<RankExited>(1));
  ASSERT_TRUE(StopAndWait(Generation(1), seconds(1)));
  Shell(Generation(2), "echo second");
  ASSERT_TRUE(WaitFor<RankExited>(2));
  EXPECT_EQ(File("logs/g1/rank-0.log"), "first\n");
  EXPECT_EQ(File("logs/g2/rank-0.log"), "second\n");
}

TEST_F(AgentProcess, StartingTwiceStartsOnce) {
  StartAgent();
  const StartRanks start = Shell(Generation(1), "echo once; exec sleep 1000");
  ASSERT_TRUE(port_->Send("a", start));
  ASSERT_TRUE(WaitForText("logs/g1/rank-0.log", "once"));
  ASSERT_TRUE(StopAndWait(Generation(1), seconds(5)));
  ASSERT_TRUE(port_->Send("a", start));  // ended ranks included
  // The second answer to a stop comes after whatever the start did.
  ASSERT_TRUE(StopAndWait(Generation(1), seconds(5), 2));
  EXPECT_EQ(File("logs/g1/rank-0.log"), "once\n");
  EXPECT_EQ(All<RankExited>().size(), 1u);
}

TEST_F(AgentProcess, NoGenerationBesideAnOlderOne) {
  StartAgent();
  Shell(Generation(1), "exec sleep 1000");
  Shell(Generation(2), "echo never");
  ASSERT_TRUE(WaitFor<RankStartFailed>(1));
  EXPECT_EQ(All<RankStartFailed>()[0].generation, Generation(2));
  EXPECT_NE(All<RankStartFailed>()[0].reason.find("generation 1 has not ended"), std::string::npos);
}

TEST_F(AgentProcess, FencedGenerationsEndAndDoNotStart) {
  StartAgent();
  Shell(Generation(1), "echo $$ > $OUT/pid; exec sleep 1000");
  const pid_t pid = PidIn("pid");
  ASSERT_TRUE(port_->Send("a", FenceGeneration{Generation(2), "generation 3 exists"}));
  ASSERT_TRUE(WaitFor<GenerationEnded>(1));
  EXPECT_FALSE(Exists(pid));
  Shell(Generation(2), "echo never");
  ASSERT_TRUE(WaitFor<RankStartFailed>(1));
  EXPECT_NE(All<RankStartFailed>()[0].reason.find("fenced"), std::string::npos);
  Shell(Generation(3), "exit 0");
  ASSERT_TRUE(WaitFor<RankExited>(2));
}

TEST_F(AgentProcess, EventsComeAgainUntilAcknowledged) {
  StartAgent();
  Shell(Generation(1), "exit 0");
  ASSERT_TRUE(WaitFor<RankExited>(1));
  ClosePort();
  OpenPort();
  ASSERT_TRUE(WaitFor<RankExited>(2));
  std::uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    ASSERT_EQ(events_.size(), 2u);
    EXPECT_EQ(events_[0].number, events_[1].number);
    number = events_[0].number;
  }
  ClosePort();
  OpenPort(seconds(600), number);
  ASSERT_TRUE(WaitUntil([this]() PERDURE_REQUIRES(mutex_) { return hellos_.size() == 3; }));
  ASSERT_TRUE(StopAndWait(Generation(1), seconds(1)));
  EXPECT_EQ(All<RankExited>().size(), 2u);  // not a third time
}

TEST_F(AgentProcess, ASupervisorThatIsBackFindsItsRanks) {
  StartAgent();
  Shell(Generation(1), "echo $$ > $OUT/pid; exec sleep 1000");
  const pid_t pid = PidIn("pid");
  ClosePort();
  OpenPort();
  ASSERT_TRUE(WaitUntil([this]() PERDURE_REQUIRES(mutex_) { return hellos_.size() == 2; }));
  EXPECT_TRUE(Exists(pid));  // SUP-5
  MutexLock lock(mutex_);
  ASSERT_EQ(hellos_[1].running.size(), 1u);
  EXPECT_EQ(hellos_[1].running[0].pid, pid);
  EXPECT_EQ(hellos_[0].incarnation, hellos_[1].incarnation);
}

TEST_F(AgentProcess, LeaseOverWithoutProgressEndsTheRanks) {
  ClosePort();
  OpenPort(milliseconds(500));
  StartAgent();
  Shell(Generation(1), "echo $$ > $OUT/pid; exec sleep 1000");
  const pid_t pid = PidIn("pid");
  ClosePort();
  EXPECT_EQ(agent_->Wait(Soon()), 1);
  EXPECT_FALSE(Exists(pid));
}

TEST_F(AgentProcess, AShutdownEndsEverything) {
  StartAgent();
  Shell(Generation(1), "echo $$ > $OUT/pid; exec sleep 1000");
  const pid_t pid = PidIn("pid");
  ASSERT_TRUE(port_->Send("a", Shutdown{"done"}));
  ASSERT_TRUE(WaitFor<GenerationEnded>(1));
  ASSERT_TRUE(port_->Send("a", Acknowledge{100}));
  EXPECT_EQ(agent_->Wait(Soon()), 0);
  EXPECT_FALSE(Exists(pid));
}

TEST_F(AgentProcess, ASignalEndsItsRanksFirst) {
  StartAgent();
  Shell(Generation(1), "trap '' TERM; echo $$ > $OUT/pid; while :; do sleep 1000; done");
  const pid_t pid = PidIn("pid");
  agent_->Signal(SIGTERM);
  EXPECT_EQ(agent_->Wait(Soon()), 128 + SIGTERM);
  EXPECT_FALSE(Exists(pid));
}

TEST_F(AgentProcess, WordsOfARankTravelBothWays) {
  StartAgent();
  Start(Generation(1), {PERDURE_FAKE_RANK, "5"}, 2);
  ASSERT_TRUE(WaitFor<FromRank<StoreReady>>(1));
  ASSERT_TRUE(port_->Send("a", ToRanks{Generation(1), StoreAddress{"here:1"}}));
  ASSERT_TRUE(port_->Send("a", ToRanks{Generation(1), PeerDead{Rank(9), "gone"}}));
  ASSERT_TRUE(WaitForText("logs/g1/rank-0.log", "store here:1\ndead 9\n"));
  ASSERT_TRUE(WaitForText("logs/g1/rank-1.log", "dead 9\n"));  // also when it came later
  ASSERT_TRUE(WaitUntil([this]() PERDURE_REQUIRES(mutex_) {
    return report_.ranks.size() == 2 && report_.ranks[1].report.has_value();
  }));
  {
    MutexLock lock(mutex_);
    EXPECT_EQ(report_.ranks[1].report->completed_step, Step(1));
    EXPECT_LT(Seconds(report_.ranks[1].report_age), 30);
  }
  ASSERT_TRUE(StopAndWait(Generation(1), seconds(10)));
  EXPECT_NE(File("logs/g1/rank-1.log").find("stop abort=true test"), std::string::npos);
  const std::optional<RankExited> exited = ExitOf(Rank(1));
  EXPECT_EQ(exited->exit_code, 5);
  ASSERT_TRUE(exited->leaving.has_value());  // its last words are not lost
  EXPECT_EQ(exited->leaving->message, "told to stop");
}

TEST_F(AgentProcess, ARefusedAgentLeaves) {
  ASSERT_TRUE(launch::WriteAddressFile(state_,
                                       [this] {
                                         launch::SupervisorAddress file =
                                             *launch::ReadAddressFile(state_);
                                         file.token = "stale";
                                         return file;
                                       }())
                  .ok());
  agent_ = std::make_unique<Child>(
      std::vector<std::string>{PERDURE_PROGRAM, "agent", "--state", state_, "--node", "a"},
      std::map<std::string, std::string>{}, dir_ / "agent.log");
  EXPECT_EQ(agent_->Wait(Soon()), 1);
  EXPECT_NE(agent_->Output().find("token"), std::string::npos);
}

}  // namespace
}  // namespace perdure
