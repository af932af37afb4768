#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "base/posix.h"
#include "cli/verbs.h"

namespace perdure::cli {

int Complain(const Status& status) {
  fmt::print(stderr, "perdure: {}\n", status.message());
  switch (status.code()) {
    case Code::kInvalidArgument:
    case Code::kNotFound:
    case Code::kFailedPrecondition:
    case Code::kUnimplemented:
      return kUsage;
    default:
      return 1;
  }
}

Result<std::string> FindStateDirectory(const std::string& given) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!given.empty()) {
    if (!fs::is_directory(given, error)) {
      return Status(Code::kNotFound,
                    fmt::format("{} is not a state directory: no such directory", given));
    }
    return fs::canonical(given, error).string();
  }
  std::vector<std::string> found;
  for (fs::directory_iterator entry(fs::current_path(error), error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".perdure" && entry->is_directory()) {
      found.push_back(entry->path().filename().string());
    }
  }
  if (found.empty()) {
    return Status(Code::kNotFound,
                  "no *.perdure in the current directory: name the job's state with --state DIR");
  }
  if (found.size() > 1) {
    return Status(Code::kInvalidArgument,
                  fmt::format("several jobs are here: choose with --state {} or --state {}",
                              found[0], found[1]));
  }
  return fs::canonical(found[0], error).string();
}

Result<int> SignalDescriptor(bool with_children) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  if (with_children) sigaddset(&set, SIGCHLD);
  if (::pthread_sigmask(SIG_BLOCK, &set, nullptr) != 0) {
    return Status(Code::kInternal, "signals cannot be blocked");
  }
  const int fd = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) return ErrnoStatus(errno, "signalfd");
  return fd;
}

bool DieWithParent(int parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  return ::getppid() == parent;
}

}  // namespace perdure::cli
