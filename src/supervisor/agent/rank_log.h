// The log file of a rank in a generation: STATE/logs/g3/rank-2.log. Appended to, never truncated.
#pragma once

#include <string>
#include <string_view>

#include "base/posix.h"
#include "perdure/ids.h"
#include "perdure/status.h"

namespace perdure::agent {

std::string RankLogPath(const std::string& state_directory, Generation generation, Rank rank);

// Makes the directories.
Result<UniqueFd> OpenRankLog(const std::string& path);

// Does this line tell of a failure? For picking lines to show.
bool LooksLikeError(std::string_view line);

// The line that best says why the program failed: the last one that looks like an error, else the
// last one that is not empty. Pure.
std::string PickErrorLine(std::string_view text);
// The same from the end of a log file; empty when it cannot be read or says nothing.
std::string LastErrorLine(const std::string& path);

}  // namespace perdure::agent
