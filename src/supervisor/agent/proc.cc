#include "supervisor/agent/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

namespace perdure::agent {
namespace {

// Fields of /proc/PID/stat after the name, counted from the state as 0.
constexpr std::size_t kStateField = 0;
constexpr std::size_t kParentField = 1;
constexpr std::size_t kUserTimeField = 11;
constexpr std::size_t kSystemTimeField = 12;
constexpr std::size_t kStartTimeField = 19;
constexpr std::size_t kResidentField = 21;

std::vector<std::string_view> SplitBySpaces(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t begin = text.find_first_not_of(" \n");
    if (begin == std::string_view::npos) break;
    const std::size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    text.remove_prefix(end);
  }
  return words;
}

template <class Number>
Number NumberOf(std::string_view text) {
  Number value{};
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

std::optional<ProcessStat> ParseStat(std::string_view text, long ticks_per_second,
                                     long page_bytes) {
  const std::size_t open = text.find('(');
  const std::size_t close = text.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) {
    return std::nullopt;
  }
  const std::vector<std::string_view> fields = SplitBySpaces(text.substr(close + 1));
  if (fields.size() <= kResidentField) return std::nullopt;
  ProcessStat stat;
  stat.pid = NumberOf<pid_t>(text);
  stat.name = std::string(text.substr(open + 1, close - open - 1));
  stat.state = fields[kStateField].front();
  stat.parent = NumberOf<pid_t>(fields[kParentField]);
  const auto ticks = NumberOf<std::uint64_t>(fields[kUserTimeField]) +
                     NumberOf<std::uint64_t>(fields[kSystemTimeField]);
  stat.cpu_seconds = static_cast<double>(ticks) / static_cast<double>(ticks_per_second);
  stat.start_ticks = NumberOf<std::uint64_t>(fields[kStartTimeField]);
  stat.resident_bytes = NumberOf<std::int64_t>(fields[kResidentField]) * page_bytes;
  return stat;
}

std::optional<ProcessStat> ReadStat(pid_t pid) {
  static const long ticks_per_second = ::sysconf(_SC_CLK_TCK);
  static const long page_bytes = ::sysconf(_SC_PAGESIZE);
  const Result<std::string> text = ReadSmallFile(fmt::format("/proc/{}/stat", pid));
  if (!text.ok()) return std::nullopt;
  return ParseStat(*text, ticks_per_second, page_bytes);
}

std::vector<ProcessStat> ReadAllStats() {
  std::vector<ProcessStat> all;
  DIR* const directory = ::opendir("/proc");
  if (directory == nullptr) return all;
  while (const dirent* entry = ::readdir(directory)) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    if (std::optional<ProcessStat> stat = ReadStat(NumberOf<pid_t>(entry->d_name))) {
      all.push_back(*std::move(stat));
    }
  }
  ::closedir(directory);
  return all;
}

ProcessState StateOf(const ProcessStat& stat) {
  switch (stat.state) {
    case 'T':
    case 't':
      return ProcessState::kStopped;
    case 'D':
      return ProcessState::kUninterruptible;
    case 'Z':
      return ProcessState::kZombie;
    case 'X':
    case 'x':
      return ProcessState::kGone;
    default:
      return ProcessState::kRunning;
  }
}

std::optional<std::string> ReadVariableOf(pid_t pid, std::string_view name) {
  const Result<std::string> environment = ReadSmallFile(fmt::format("/proc/{}/environ", pid));
  if (!environment.ok()) return std::nullopt;
  std::string_view rest = *environment;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\0'), rest.size());
    const std::string_view variable = rest.substr(0, end);
    if (variable.size() > name.size() && variable[name.size()] == '=' &&
        variable.substr(0, name.size()) == name) {
      return std::string(variable.substr(name.size() + 1));
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return std::nullopt;
}

Result<UniqueFd> OpenPidFd(pid_t pid) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("pidfd_open of process {}", pid));
  return fd;
}

bool SignalProcess(const ProcessStat& process, int signal) {
  const Result<UniqueFd> fd = OpenPidFd(process.pid);
  if (!fd.ok()) return false;
  // The descriptor holds one process; this says that it is the one that was seen.
  const std::optional<ProcessStat> now = ReadStat(process.pid);
  if (!now.has_value() || now->start_ticks != process.start_ticks) return false;
  return ::syscall(SYS_pidfd_send_signal, fd->get(), signal, nullptr, 0) == 0;
}

}  // namespace perdure::agent
