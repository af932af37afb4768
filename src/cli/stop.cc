// perdure stop: one coordinated checkpoint, then an orderly end.
#include <fmt/format.h>

#include <memory>

#include "cli/job_client.h"
#include "cli/verbs.h"

namespace perdure::cli {
namespace {

struct StopOptions {
  std::string state;
  std::string reason = "asked by a person (perdure stop)";
};

int StopJob(const StopOptions& options) {
  const Result<std::string> state = FindStateDirectory(options.state);
  if (!state.ok()) return Complain(state.status());
  const auto supervisor = DialSupervisor(*state);
  const Status status = supervisor.ok() ? (*supervisor)->Stop(options.reason) : supervisor.status();
  if (!status.ok()) return Complain(NobodyAnswers(status));
  fmt::print("the job will take a checkpoint and end; perdure status shows how far it is\n");
  return 0;
}

}  // namespace

void AddStopVerb(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<StopOptions>();
  CLI::App* verb = app.add_subcommand("stop", "One coordinated checkpoint, then an orderly end");
  verb->add_option("--state", options->state, "State directory (default: the only *.perdure here)");
  verb->add_option("--reason", options->reason, "Kept in the journal");
  verb->callback([options, &exit_code] { exit_code = StopJob(*options); });
}

}  // namespace perdure::cli
