#include "support/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/posix.h"

namespace perdure {

Child::Child(const std::vector<std::string>& argv,
             const std::map<std::string, std::string>& environment, std::string output_file)
    : output_file_(std::move(output_file)) {
  std::vector<char*> args;
  for (const std::string& arg : argv) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);
  std::vector<std::string> variables;
  variables.push_back("PATH=" + GetEnv("PATH").value_or("/usr/bin:/bin"));
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  std::vector<char*> env;
  for (std::string& variable : variables) env.push_back(variable.data());
  env.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, output_file_.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                   0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  const int error = ::posix_spawnp(&pid_, args[0], &actions, nullptr, args.data(), env.data());
  posix_spawn_file_actions_destroy(&actions);
  PERDURE_CHECK(error == 0, "the program under test cannot be started: " + argv[0]);
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      ended_(other.ended_),
      output_file_(std::move(other.output_file_)) {}

Child::~Child() {
  if (pid_ < 0 || ended_.has_value()) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Child::Signal(int signal) const {
  if (!ended_.has_value()) ::kill(pid_, signal);
}

std::optional<int> Child::Wait(Deadline deadline) {
  if (ended_.has_value()) return ended_;
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  pollfd waiting{pidfd.get(), POLLIN, 0};
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline.Remaining(RealClock().Now()));
  if (::poll(&waiting, 1, static_cast<int>(left.count())) != 1) return std::nullopt;
  int status = 0;
  ::waitpid(pid_, &status, 0);
  ended_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ended_;
}

std::string Child::Output() const {
  const Result<std::string> text = ReadSmallFile(output_file_);
  return text.ok() ? *text : "";
}

bool Child::WaitForOutput(const std::string& text, Deadline deadline) const {
  while (Output().find(text) == std::string::npos) {
    if (deadline.Passed(RealClock().Now())) return false;
    ::poll(nullptr, 0, 5);
  }
  return true;
}

}  // namespace perdure
