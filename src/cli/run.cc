// perdure run: a job in the foreground on this machine.
//
//  1. Read the job file and hold it against the machine; wrong: one line, exit 2.
//  2. Take the state directory for this run (a lock), and end what an earlier run left behind.
//  3. Start the supervisor, then an agent per node, spares included, as processes of their own.
//  4. From here on be a client: show what ranks print, what the supervisor decides, how far it is.
//     A supervisor that dies is started again; it takes its agents back and disturbs no rank
//     (SUP-5).
//  5. SIGINT, SIGTERM or SIGHUP goes to the supervisor: one coordinated checkpoint, then the end.
//     The second one ends everything at once.
//  6. When the supervisor has ended the job, wait for the agents; whatever is left is killed. Its
//     exit code is ours.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "base/posix.h"
#include "cli/job_client.h"
#include "cli/job_options.h"
#include "cli/log_view.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "supervisor/agent/rank_log.h"
#include "supervisor/launch/address_file.h"
#include "supervisor/launch/local.h"
#include "supervisor/status/reader.h"

namespace perdure::cli {
namespace {

constexpr int kTurnMs = 100;
constexpr Duration kAskEvery = std::chrono::milliseconds(500);
constexpr Duration kAskPatience = std::chrono::seconds(1);
constexpr Duration kLeftoversPatience = std::chrono::seconds(10);
// A supervisor that dies sooner than this after its start counts as one that does not hold.
constexpr Duration kSupervisorHolds = std::chrono::seconds(10);
constexpr int kQuickDeathsMax = 5;
// For the agents, once the supervisor has ended the job, on top of the grace.
constexpr Duration kAgentsLeaveWithin = std::chrono::seconds(10);

class ForegroundRun {
 public:
  ForegroundRun(JobFile job, std::vector<std::string> supervisor_words, std::string state,
                int signals, launch::LocalProcesses processes)
      : job_(std::move(job)),
        supervisor_words_(std::move(supervisor_words)),
        state_(std::move(state)),
        signals_(signals),
        stop_grace_(std::chrono::milliseconds(
            static_cast<std::int64_t>(job_.fault_tolerance.stop_grace_s.value_or(15) * 1000))),
        processes_(std::move(processes)),
        screen_(::isatty(STDOUT_FILENO) == 1, Columns()),
        logs_(state_) {}

  int Run() {
    // Events of earlier runs are not news.
    (void)JobReader(state_).Events(1, [this](const std::string&) {
      ++next_event_;
      return true;
    });
    if (const Status started = StartAll(); !started.ok()) {
      Say(started.message());
      return EndNow(1);
    }
    while (!exit_code_.has_value()) Turn();
    return LeaveInOrder(*exit_code_);
  }

 private:
  static int Columns() {
    winsize size{};
    return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 80;
  }

  static MonotonicTime Now() { return RealClock().Now(); }

  void Say(const std::string& line) { screen_.Line("perdure: " + line); }

  Status StartSupervisor() {
    supervisor_started_ = Now();
    return processes_.StartSupervisor(supervisor_words_);
  }

  Status StartAll() {
    PERDURE_RETURN_IF_ERROR(processes_.EndLeftovers(Deadline::After(kLeftoversPatience)));
    PERDURE_RETURN_IF_ERROR(StartSupervisor());
    const int nodes = job_.launch.nodes + job_.launch.spares;
    for (const std::string& node : launch::NodeNames(nodes)) {
      PERDURE_RETURN_IF_ERROR(processes_.StartAgent(node, job_.launch.ranks_per_node));
    }
    Say(fmt::format("{}: {} ranks on {} nodes, {} spare; state in {}", job_.name, job_.world_size(),
                    job_.launch.nodes, job_.launch.spares, state_));
    return Ok();
  }

  // One look at everything.
  void Turn() {
    pollfd waiting{signals_, POLLIN, 0};
    ::poll(&waiting, 1, kTurnMs);
    TakeSignals();
    TakeEnds();
    ShowLogs();
    AskSupervisor();
  }

  void TakeSignals() {
    signalfd_siginfo info{};
    while (::read(signals_, &info, sizeof(info)) == sizeof(info)) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) continue;
      if (stop_signal_.has_value()) {
        Say("ending everything now");
        exit_code_ = 128 + signal;
        at_once_ = true;
        return;
      }
      stop_signal_ = signal;
      Say(signal == SIGINT
              ? "stopping: one checkpoint, then the end; press Ctrl-C again to end at once"
              : fmt::format("signal {}: one checkpoint, then the end", signal));
      processes_.SignalSupervisor(signal == SIGINT ? SIGINT : SIGTERM);
    }
  }

  void TakeEnds() {
    for (const launch::LocalProcesses::Ended& ended : processes_.Reap()) {
      if (ended.name == "supervisor") {
        OnSupervisorEnd(ended.wait_status);
      } else if (!exit_code_.has_value() && WIFSIGNALED(ended.wait_status)) {
        Say(fmt::format("the agent of node {} was ended by signal {}", ended.name,
                        WTERMSIG(ended.wait_status)));
      }
    }
  }

  void OnSupervisorEnd(int wait_status) {
    client_.reset();
    if (WIFEXITED(wait_status)) {
      exit_code_ = WEXITSTATUS(wait_status);
      return;
    }
    const int signal = WTERMSIG(wait_status);
    quick_deaths_ = Now() - supervisor_started_ < kSupervisorHolds ? quick_deaths_ + 1 : 0;
    if (stop_signal_.has_value() || quick_deaths_ >= kQuickDeathsMax) {
      Say(fmt::format("the supervisor was ended by signal {}; ending the job", signal));
      exit_code_ = 128 + signal;
      return;
    }
    Say(fmt::format("the supervisor was ended by signal {}; starting it again, the ranks go on",
                    signal));
    if (const Status started = StartSupervisor(); !started.ok()) {
      Say(started.message());
      exit_code_ = 1;
    }
  }

  void ShowLogs() {
    logs_.Poll([this](int rank, std::string_view line) {
      screen_.Line(fmt::format("[rank {}] {}", rank, line));
    });
  }

  void ShowEvent(const std::string& text) {
    ++next_event_;
    const auto event = nlohmann::json::parse(text, nullptr, false);
    if (!event.is_object()) return;
    const std::string sentence = event.value("sentence", "");
    if (!sentence.empty()) Say(fmt::format("t={:.1f}  {}", event.value("t", 0.0), sentence));
  }

  void AskSupervisor() {
    if (Now() < next_question_ || exit_code_.has_value()) return;
    next_question_ = Now() + kAskEvery;
    if (client_ == nullptr) {
      const Result<launch::SupervisorAddress> file = launch::ReadAddressFile(state_);
      // The file of the one before says nothing.
      if (!file.ok() || file->pid != processes_.supervisor()) return;
      client_ = std::make_unique<wire::GrpcJobControl>(file->address, file->token, kAskPatience);
    }
    const Status events = client_->Events(next_event_, false, Deadline::After(kAskPatience),
                                          [this](const std::string& event) {
                                            ShowEvent(event);
                                            return true;
                                          });
    if (!events.ok()) return;
    const Result<std::string> status = client_->StatusJson();
    if (status.ok()) screen_.Progress(ProgressLine(*status), Now());
  }

  // The supervisor is gone, and the job with it; the agents have been told.
  int LeaveInOrder(int code) {
    if (at_once_) return EndNow(code);
    const Deadline deadline = Deadline::After(stop_grace_ + kAgentsLeaveWithin);
    while (processes_.any_agent() && !deadline.Passed(Now()) && !at_once_) {
      // Without a supervisor that told them to leave they wait for its return.
      if (code >= 128 && !told_agents_) {
        told_agents_ = true;
        processes_.SignalAgents(SIGTERM);
      }
      pollfd waiting{signals_, POLLIN, 0};
      ::poll(&waiting, 1, kTurnMs);
      TakeSignals();
      (void)processes_.Reap();
      ShowLogs();
    }
    return EndNow(at_once_ ? *exit_code_ : code);
  }

  int EndNow(int code) {
    const std::vector<pid_t> left = processes_.EndAll(Duration::zero());
    logs_.Finish([this](int rank, std::string_view line) {
      screen_.Line(fmt::format("[rank {}] {}", rank, line));
    });
    (void)JobReader(state_).Events(next_event_, [this](const std::string& event) {
      ShowEvent(event);
      return true;
    });
    for (const pid_t pid : left) Say(fmt::format("process {} cannot be killed", pid));
    if (!at_once_) ShowEnd(code);
    return code;
  }

  void ShowEnd(int code) {
    const Result<std::string> status = JobReader(state_).StatusJson(RealClock().WallNow());
    const auto parsed =
        status.ok() ? nlohmann::json::parse(*status, nullptr, false) : nlohmann::json();
    if (parsed.is_object() && parsed.value("phase", "") == "done") {
      Say(parsed.value("headline", ""));
      return;
    }
    const std::string why = agent::LastErrorLine(state_ + "/logs/supervisor.log");
    Say(fmt::format("ended with exit code {}{}", code, why.empty() ? "" : ": " + why));
  }

  const JobFile job_;
  const std::vector<std::string> supervisor_words_;
  const std::string state_;
  const int signals_;
  const Duration stop_grace_;

  launch::LocalProcesses processes_;
  Screen screen_;
  LogView logs_;
  std::unique_ptr<wire::GrpcJobControl> client_;
  MonotonicTime supervisor_started_{};
  MonotonicTime next_question_{};
  std::int64_t next_event_ = 1;
  int quick_deaths_ = 0;
  std::optional<int> stop_signal_;
  std::optional<int> exit_code_;  // the job is over
  bool at_once_ = false;
  bool told_agents_ = false;
};

// The words after "perdure supervisor" that mean the same job.
std::vector<std::string> SupervisorWords(const JobOptions& options, const JobFile& job) {
  std::vector<std::string> words = {job.path};
  const auto add = [&words](const char* name, const std::optional<int>& value) {
    if (value.has_value()) words.insert(words.end(), {name, std::to_string(*value)});
  };
  add("--nodes", options.nodes);
  add("--spares", options.spares);
  add("--ranks-per-node", options.ranks_per_node);
  return words;
}

int RunJob(const JobOptions& options) {
  SetLogName("run");
  Result<JobFile> job = LoadJob(options);
  if (!job.ok()) return Complain(job.status());
  if (const Status checked = CheckJobFile(*job); !checked.ok()) return Complain(checked);
  if (job->launch.launcher != "local") {
    return Complain(Status(
        Code::kUnimplemented,
        fmt::format("launcher {}: perdure run starts local nodes only", job->launch.launcher)));
  }
  const Result<std::string> state = MakeStateDirectory(options, *job);
  if (!state.ok()) return Complain(state.status());

  const std::string lock_path = *state + "/run.lock";
  const UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return Complain(ErrnoStatus(errno, fmt::format("open {}", lock_path)));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return Complain(
        Status(Code::kFailedPrecondition,
               fmt::format("another perdure run is at work on {}; perdure status --state "
                           "{} shows it",
                           *state, *state)));
  }

  const Result<int> signals = SignalDescriptor(true);
  if (!signals.ok()) return Complain(signals.status());
  Result<launch::LocalProcesses> processes = launch::LocalProcesses::Create(*state);
  if (!processes.ok()) return Complain(processes.status());
  std::vector<std::string> words = SupervisorWords(options, *job);
  ForegroundRun run(*std::move(job), std::move(words), *state, *signals, *std::move(processes));
  return run.Run();
}

}  // namespace

void AddRunVerb(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<JobOptions>();
  CLI::App* verb = app.add_subcommand(
      "run", "A job in the foreground on this machine: supervisor, agents, progress");
  AddJobOptions(*verb, *options);
  verb->callback([options, &exit_code] { exit_code = RunJob(*options); });
}

}  // namespace perdure::cli
