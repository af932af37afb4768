#include "supervisor/launch/local.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/posix.h"
#include "supervisor/agent/process_tree.h"
#include "supervisor/agent/spawn.h"

namespace perdure::launch {
namespace {

constexpr const char* kSupervisor = "supervisor";
constexpr Duration kKillPatience = std::chrono::seconds(10);
constexpr int kLookMs = 10;

}  // namespace

std::vector<std::string> NodeNames(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    names.push_back(i < 26 ? std::string(1, static_cast<char>('a' + i)) : fmt::format("n{}", i));
  }
  return names;
}

Result<LocalProcesses> LocalProcesses::Create(std::string state_directory) {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return ErrnoStatus(errno, "becoming a child subreaper");
  }
  return LocalProcesses(std::move(state_directory));
}

Status LocalProcesses::EndLeftovers(Deadline deadline) const {
  const auto left = agent::KillMarked(agent::JobMarker(state_), deadline);
  if (left.empty()) return Ok();
  return Status(Code::kFailedPrecondition,
                fmt::format("process {} ({}) of an earlier run of this job cannot be killed",
                            left.front().pid, left.front().name));
}

Status LocalProcesses::Start(const std::string& name, const std::string& log,
                             std::vector<std::string> words) {
  const std::string path = fmt::format("{}/logs/{}.log", state_, log);
  std::error_code error;
  std::filesystem::create_directories(state_ + "/logs", error);
  const UniqueFd output(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!output.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  words.push_back("--state");
  words.push_back(state_);
  words.push_back("--parent");
  words.push_back(std::to_string(::getpid()));
  agent::SpawnRequest spawn;
  spawn.words = std::move(words);
  spawn.environment = agent::EnvironmentWith({});
  spawn.output_fd = output.get();
  PERDURE_ASSIGN_OR_RETURN(const pid_t pid, agent::SpawnSelf(spawn));
  running_[pid] = name;
  return Ok();
}

Status LocalProcesses::StartSupervisor(const std::vector<std::string>& words) {
  std::vector<std::string> all = {"supervisor"};
  all.insert(all.end(), words.begin(), words.end());
  return Start(kSupervisor, "supervisor", std::move(all));
}

Status LocalProcesses::StartAgent(const std::string& node, int capacity) {
  return Start(node, "agent-" + node,
               {"agent", "--node", node, "--capacity", std::to_string(capacity)});
}

std::vector<LocalProcesses::Ended> LocalProcesses::Reap() {
  std::vector<Ended> ended;
  int status = 0;
  for (;;) {
    const pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid <= 0) break;
    const auto found = running_.find(pid);
    if (found == running_.end()) continue;
    ended.push_back({found->second, status});
    running_.erase(found);
  }
  for (const Ended& process : ended) {
    if (process.name == kSupervisor) continue;
    // Its ranks died with it; what they had started did not.
    (void)agent::KillMarked(agent::NodeMarker(state_, process.name),
                            Deadline::After(kKillPatience));
  }
  return ended;
}

std::optional<pid_t> LocalProcesses::supervisor() const {
  for (const auto& [pid, name] : running_) {
    if (name == kSupervisor) return pid;
  }
  return std::nullopt;
}

bool LocalProcesses::any_agent() const {
  return std::any_of(running_.begin(), running_.end(),
                     [](const auto& entry) { return entry.second != kSupervisor; });
}

void LocalProcesses::SignalSupervisor(int signal) const {
  // Children that were not waited for keep their number.
  if (const std::optional<pid_t> pid = supervisor()) ::kill(*pid, signal);
}

void LocalProcesses::SignalAgents(int signal) const {
  for (const auto& [pid, name] : running_) {
    if (name != kSupervisor) ::kill(pid, signal);
  }
}

std::vector<pid_t> LocalProcesses::EndAll(Duration grace) {
  SignalAgents(SIGCONT);
  SignalAgents(SIGTERM);
  const Deadline gentle = Deadline::After(grace);
  while (any_agent() && !gentle.Passed(RealClock().Now())) {
    Reap();
    ::poll(nullptr, 0, kLookMs);
  }
  const Deadline forced = Deadline::After(kKillPatience);
  for (const auto& [pid, name] : running_) ::kill(pid, SIGKILL);
  while (!running_.empty() && !forced.Passed(RealClock().Now())) {
    Reap();
    ::poll(nullptr, 0, kLookMs);
  }
  std::vector<pid_t> left;
  for (const auto& process : agent::KillMarked(agent::JobMarker(state_), forced)) {
    left.push_back(process.pid);
  }
  Reap();
  for (const auto& [pid, name] : running_) left.push_back(pid);
  return left;
}

}  // namespace perdure::launch
