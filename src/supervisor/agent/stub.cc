#include "supervisor/agent/stub.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "base/posix.h"

namespace perdure::agent {
namespace {

int Fail(const std::string& what) {
  // The pipe holds far more than one line, and nobody else writes to it.
  (void)!::write(kStubStatusFd, what.data(), what.size());
  return kStubFailed;
}

std::string ErrorText(int error) {
  return std::generic_category().message(error);
}

}  // namespace

std::vector<std::string> ToWords(const StubArguments& arguments) {
  std::vector<std::string> words = {std::to_string(arguments.parent), arguments.working_directory};
  words.insert(words.end(), arguments.command.begin(), arguments.command.end());
  return words;
}

int RunStub(const std::vector<std::string>& words) {
  if (words.size() < 3) return 2;
  const pid_t parent = static_cast<pid_t>(std::strtol(words[0].c_str(), nullptr, 10));
  ::fcntl(kStubStatusFd, F_SETFD, FD_CLOEXEC);
  ::setsid();
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
    return Fail(fmt::format("cannot bind the rank's life to the agent's: {}", ErrorText(errno)));
  }
  if (::getppid() != parent) return Fail("the agent ended before the rank began");
  ::syscall(SYS_close_range, static_cast<unsigned>(kStubStatusFd + 1), ~0u, 0);
  if (!words[1].empty() && ::chdir(words[1].c_str()) != 0) {
    return Fail(
        fmt::format("cannot enter the working directory {}: {}", words[1], ErrorText(errno)));
  }
  std::vector<char*> argv;
  for (std::size_t i = 2; i < words.size(); ++i)
    argv.push_back(const_cast<char*>(words[i].c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  const int error = errno;
  if (error == ENOENT) {
    return Fail(
        fmt::format("command \"{}\" was not found (looked in {}, working directory {})", words[2],
                    words[2].find('/') == std::string::npos ? "PATH" : "that place", words[1]));
  }
  return Fail(fmt::format("command \"{}\" cannot be started: {}", words[2], ErrorText(error)));
}

}  // namespace perdure::agent
