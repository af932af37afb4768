#include "supervisor/agent/evidence.h"

#include <dirent.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/posix.h"
#include "supervisor/agent/proc.h"
#include "supervisor/agent/rank_log.h"

namespace perdure::agent {
namespace {

std::string FirstLine(const std::string& path) {
  const Result<std::string> text = ReadSmallFile(path, 1 << 16);
  if (!text.ok()) return "";
  return text->substr(0, text->find('\n'));
}

std::vector<pid_t> ThreadsOf(pid_t pid) {
  std::vector<pid_t> threads;
  DIR* const directory = ::opendir(fmt::format("/proc/{}/task", pid).c_str());
  if (directory == nullptr) return threads;
  while (const dirent* entry = ::readdir(directory)) {
    const long id = std::strtol(entry->d_name, nullptr, 10);
    if (id > 0) threads.push_back(static_cast<pid_t>(id));
  }
  ::closedir(directory);
  std::sort(threads.begin(), threads.end());
  return threads;
}

void AppendThread(pid_t pid, pid_t thread, std::string* text) {
  const std::string place = fmt::format("/proc/{}/task/{}", pid, thread);
  const Result<std::string> stat_text = ReadSmallFile(place + "/stat");
  if (!stat_text.ok()) return;  // ended meanwhile
  const std::optional<ProcessStat> stat = ParseStat(*stat_text, 100, 4096);
  if (!stat.has_value()) return;
  *text += fmt::format("thread {} \"{}\" state {} cpu {:.2f} s", thread, stat->name, stat->state,
                       stat->cpu_seconds);
  const std::string waits_in = FirstLine(place + "/wchan");
  if (!waits_in.empty() && waits_in != "0") *text += " waits in " + waits_in;
  const std::string call = FirstLine(place + "/syscall");
  if (!call.empty()) *text += " syscall " + call.substr(0, call.find(' '));
  *text += "\n";
  const Result<std::string> stack = ReadSmallFile(place + "/stack", 1 << 16);
  if (!stack.ok()) return;
  std::string_view rest = *stack;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    *text += fmt::format("    {}\n", rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

}  // namespace

std::string EvidenceOf(pid_t pid, const std::string& log_path) {
  const std::optional<ProcessStat> stat = ReadStat(pid);
  if (!stat.has_value()) return fmt::format("process {} is gone\n", pid);
  std::string text =
      fmt::format("process {} \"{}\" state {} cpu {:.2f} s resident {} MiB\n", pid, stat->name,
                  stat->state, stat->cpu_seconds, stat->resident_bytes >> 20);
  const std::vector<pid_t> threads = ThreadsOf(pid);
  for (std::size_t i = 0; i < threads.size() && i < kEvidenceThreadsMax; ++i) {
    AppendThread(pid, threads[i], &text);
  }
  if (threads.size() > kEvidenceThreadsMax) {
    text += fmt::format("{} more threads\n", threads.size() - kEvidenceThreadsMax);
  }
  const std::string last = LastErrorLine(log_path);
  if (!last.empty()) text += "log: " + last + "\n";
  if (text.size() > kEvidenceBytesMax) {
    text.resize(kEvidenceBytesMax);
    text += "\n… cut here\n";
  }
  return text;
}

}  // namespace perdure::agent
