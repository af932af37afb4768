// The verbs of the command line, one file each. Every Add function declares its options; when the
// verb is chosen it runs within the parse and leaves the exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "perdure/status.h"

namespace perdure::cli {

// Exit code for wrong usage or configuration.
inline constexpr int kUsage = 2;
// Of ranks, generations, steps and events on the command line.
inline constexpr int kNumberMax = 1'000'000'000;

void AddRunVerb(CLI::App& app, int& exit_code);
void AddSupervisorVerb(CLI::App& app, int& exit_code);
void AddAgentVerb(CLI::App& app, int& exit_code);
void AddStatusVerb(CLI::App& app, int& exit_code);
void AddEventsVerb(CLI::App& app, int& exit_code);
void AddReportVerb(CLI::App& app, int& exit_code);
void AddLogsVerb(CLI::App& app, int& exit_code);
void AddStopVerb(CLI::App& app, int& exit_code);
void AddChaosVerb(CLI::App& app, int& exit_code);
// checkpoint ls | show | verify | diff | export | prune | pin
void AddCheckpointVerbs(CLI::App& app, int& exit_code);

// One line on stderr; returns the exit code that goes with the error (2 for what the user can
// correct, 1 otherwise).
int Complain(const Status& status);

// The directory given, else the only *.perdure in the current directory; an error names the
// choices.
Result<std::string> FindStateDirectory(const std::string& given);

// Blocks the signals that end a program, in this thread and those it will start, and returns a
// descriptor from which they can be read.
Result<int> SignalDescriptor(bool with_children);

// A process started by `perdure run` ends when that ends: asks for SIGTERM at the parent's death.
// False: it is dead already.
bool DieWithParent(int parent);

}  // namespace perdure::cli
