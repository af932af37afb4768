// Starts this program again, as another process, by posix_spawn: no code of ours runs between fork
// and exec, so threads and locks of the parent do not matter.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "base/posix.h"
#include "perdure/status.h"

namespace perdure::agent {

struct SpawnRequest {
  std::vector<std::string> words;        // after the program's own name
  std::vector<std::string> environment;  // "NAME=value"
  int output_fd = -1;                    // becomes stdout and stderr
  int status_fd = -1;                    // becomes descriptor 3; -1: none
};

// stdin is /dev/null; every signal has its default disposition and is open. The executable is the
// one that runs now, also when its file was replaced meanwhile.
Result<pid_t> SpawnSelf(const SpawnRequest& request);

// This process's environment with `overrides` on top.
std::vector<std::string> EnvironmentWith(const std::map<std::string, std::string>& overrides);

}  // namespace perdure::agent
