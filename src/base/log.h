// Logging: spdlog to stderr, one line per fact, "perdure" in front so that it can be told from the
// program's own output. PERDURE_LOG_LEVEL sets the level (trace debug info warn error off).
#pragma once

#include <spdlog/logger.h>

#include <string>

namespace perdure {

// The process's logger. Thread-safe, never null, usable before and after main.
spdlog::logger& Log();

// Who speaks: "rank 3 g2", "agent b", "supervisor". Shown in each line from then on.
void SetLogName(const std::string& name);

// For tools that print their results themselves: from now on only what is wrong is logged, unless
// PERDURE_LOG_LEVEL says otherwise.
void QuietLog();

}  // namespace perdure
