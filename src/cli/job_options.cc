#include "cli/job_options.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/posix.h"

namespace perdure::cli {

void AddJobOptions(CLI::App& verb, JobOptions& options) {
  verb.add_option("job", options.file, "The job file")->required();
  verb.add_option(
      "--state", options.state,
      "State directory: journal, logs, evidence (default: NAME.perdure beside the job file)");
  verb.add_option("--nodes", options.nodes, "Nodes with ranks, instead of the job file's");
  verb.add_option("--spares", options.spares, "Spare nodes, instead of the job file's");
  verb.add_option("--ranks-per-node", options.ranks_per_node,
                  "Ranks on each node, instead of the job file's");
}

Result<JobFile> LoadJob(const JobOptions& options) {
  return LoadJobFile(options.file, {options.nodes, options.spares, options.ranks_per_node});
}

Result<std::string> MakeStateDirectory(const JobOptions& options, const JobFile& job) {
  namespace fs = std::filesystem;
  const std::string wanted = options.state.empty() ? job.DefaultStateDirectory() : options.state;
  std::error_code error;
  fs::create_directories(wanted, error);
  const std::string absolute = error ? "" : fs::canonical(wanted, error).string();
  if (error) {
    return ErrnoStatus(
        error.value(),
        fmt::format("state directory {} cannot be made (choose another with --state)", wanted));
  }
  return absolute;
}

}  // namespace perdure::cli
