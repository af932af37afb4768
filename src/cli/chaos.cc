// perdure chaos: fault drills against a running job.
#include <fmt/format.h>
#include <signal.h>

#include <memory>
#include <optional>

#include "cli/job_client.h"
#include "cli/verbs.h"

namespace perdure::cli {
namespace {

struct ChaosOptions {
  std::string state;
  std::optional<int> rank;
  std::string node;
  bool supervisor = false;
  std::optional<std::int64_t> at_step;
};

int Drill(const ChaosOptions& options, int signal) {
  const int targets = (options.rank.has_value() ? 1 : 0) + (options.node.empty() ? 0 : 1) +
                      (options.supervisor ? 1 : 0);
  if (targets != 1) {
    return Complain(
        Status(Code::kInvalidArgument, "name one target: --rank R, --node NAME or --supervisor"));
  }
  ChaosRequest request;
  request.signal = signal;
  std::string what = "the supervisor";
  if (options.rank.has_value()) {
    request.target = ChaosRequest::Target::kRank;
    request.rank = Rank(*options.rank);
    what = fmt::format("rank {}", *options.rank);
  } else if (!options.node.empty()) {
    request.target = ChaosRequest::Target::kAgent;
    request.node = options.node;
    what = fmt::format("the agent of node {}", options.node);
  } else {
    request.target = ChaosRequest::Target::kSupervisor;
  }
  if (options.at_step.has_value()) request.at_step = Step(*options.at_step);

  const Result<std::string> state = FindStateDirectory(options.state);
  if (!state.ok()) return Complain(state.status());
  const auto supervisor = DialSupervisor(*state);
  const Status status = supervisor.ok() ? (*supervisor)->Chaos(request) : supervisor.status();
  if (!status.ok()) return Complain(NobodyAnswers(status));
  fmt::print("{} {} {}\n", signal == SIGKILL ? "SIGKILL for" : "SIGSTOP for", what,
             options.at_step.has_value() ? fmt::format("at step {}", *options.at_step) : "now");
  return 0;
}

void AddDrill(CLI::App& chaos, const char* name, const char* text, int signal, int& exit_code) {
  auto options = std::make_shared<ChaosOptions>();
  CLI::App* verb = chaos.add_subcommand(name, text);
  verb->add_option("--state", options->state, "State directory (default: the only *.perdure here)");
  verb->add_option("--rank", options->rank, "A rank")->check(CLI::Range(0, kNumberMax));
  verb->add_option("--node,--agent", options->node, "A node: its agent, and with it its ranks");
  verb->add_flag("--supervisor", options->supervisor, "The supervisor");
  verb->add_option("--at-step", options->at_step,
                   "When the job has completed this step (default: now)")
      ->check(CLI::Range(0, kNumberMax));
  verb->callback([options, signal, &exit_code] { exit_code = Drill(*options, signal); });
}

}  // namespace

void AddChaosVerb(CLI::App& app, int& exit_code) {
  CLI::App* chaos = app.add_subcommand("chaos", "Fault drills against a running job");
  chaos->require_subcommand(1);
  AddDrill(*chaos, "kill", "SIGKILL a rank, a node's agent or the supervisor", SIGKILL, exit_code);
  AddDrill(*chaos, "stop", "SIGSTOP a rank, a node's agent or the supervisor", SIGSTOP, exit_code);
}

}  // namespace perdure::cli
