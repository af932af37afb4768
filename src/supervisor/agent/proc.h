// Processes as /proc shows them (proc(5)), and signals that cannot hit a reused pid.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/posix.h"
#include "control/messages.h"
#include "perdure/status.h"

namespace perdure::agent {

struct ProcessStat {
  pid_t pid = 0;
  pid_t parent = 0;
  char state = '?';               // R S D T t Z X …
  std::uint64_t start_ticks = 0;  // with the pid this names a process for good
  double cpu_seconds = 0;
  std::int64_t resident_bytes = 0;
  std::string name;  // as the kernel keeps it: 15 bytes

  // Zombies have no memory, no files and no device any more.
  bool alive() const { return state != 'Z' && state != 'X' && state != 'x'; }
};

// The text of /proc/PID/stat. Pure. The name may hold spaces and parentheses.
std::optional<ProcessStat> ParseStat(std::string_view text, long ticks_per_second, long page_bytes);
std::optional<ProcessStat> ReadStat(pid_t pid);
std::vector<ProcessStat> ReadAllStats();

ProcessState StateOf(const ProcessStat& stat);

// A variable of the environment with which the process was started; nullopt when it is not there or
// we may not look.
std::optional<std::string> ReadVariableOf(pid_t pid, std::string_view name);

// Sends the signal if the process still is the one that was seen. False when it is gone.
bool SignalProcess(const ProcessStat& process, int signal);

Result<UniqueFd> OpenPidFd(pid_t pid);

}  // namespace perdure::agent
