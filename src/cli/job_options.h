// What `run` and `supervisor` share: the job file, and what the command line says instead of it.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "perdure/status.h"
#include "supervisor/job/job_file.h"

namespace perdure::cli {

struct JobOptions {
  std::string file;
  std::string state;
  std::optional<int> nodes;
  std::optional<int> spares;
  std::optional<int> ranks_per_node;
};

void AddJobOptions(CLI::App& verb, JobOptions& options);
Result<JobFile> LoadJob(const JobOptions& options);
// The state directory, made when it is absent, as an absolute path.
Result<std::string> MakeStateDirectory(const JobOptions& options, const JobFile& job);

}  // namespace perdure::cli
