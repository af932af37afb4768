// perdure agent: the agent of one node.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "base/log.h"
#include "base/posix.h"
#include "cli/verbs.h"
#include "supervisor/agent/agent.h"
#include "supervisor/launch/address_file.h"
#include "wire/agent_port.h"
#include "wire/channel.h"
#include "wire/rank_port.h"

namespace perdure::cli {
namespace {

constexpr Duration kAddressPatience = std::chrono::seconds(60);
constexpr int kAddressLookMs = 20;

struct AgentVerbOptions {
  std::string supervisor;
  std::string state;
  std::string node;
  int capacity = 1;
  int parent = 0;
};

std::string HostName() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

// The supervisor of the directory may be starting just now: its file is awaited. Job and token stay
// the same when it starts again.
Result<launch::SupervisorAddress> AwaitAddressFile(const std::string& state, bool wait,
                                                   int signals) {
  const Deadline deadline = Deadline::After(kAddressPatience);
  for (;;) {
    Result<launch::SupervisorAddress> file = launch::ReadAddressFile(state);
    if (file.ok() || !wait || deadline.Passed(RealClock().Now())) return file;
    pollfd told_to_end{signals, POLLIN, 0};
    if (::poll(&told_to_end, 1, kAddressLookMs) > 0) {
      return Status(Code::kAborted, "ended before the supervisor had begun");
    }
  }
}

int RunAgent(AgentVerbOptions options) {
  if (options.supervisor.empty() && options.state.empty()) {
    return Complain(
        Status(Code::kInvalidArgument,
               "agent needs --supervisor HOST:PORT, or --state DIR of a job on this machine"));
  }
  if (options.parent > 0 && !DieWithParent(options.parent)) return 1;
  if (options.node.empty()) options.node = HostName();
  SetLogName("agent " + options.node);
  const Result<int> signals = SignalDescriptor(false);
  if (!signals.ok()) return Complain(signals.status());

  agent::AgentOptions agent;
  agent.node = options.node;
  agent.capacity = options.capacity;
  agent.signal_fd = *signals;
  agent.token = GetEnv("PERDURE_TOKEN").value_or("");
  ::unsetenv("PERDURE_TOKEN");  // not for the ranks
  std::error_code error;
  const std::string state =
      options.state.empty() ? fmt::format("perdure-agent-{}", options.node) : options.state;
  std::filesystem::create_directories(state, error);
  agent.state_directory = std::filesystem::canonical(state, error).string();
  if (error) return Complain(ErrnoStatus(error.value(), "state directory " + state));

  std::function<Result<std::string>()> address;
  if (!options.supervisor.empty()) {
    const Status local = wire::CheckLocalAddress(options.supervisor);
    if (!local.ok()) return Complain(local);
    address = [fixed = options.supervisor]() -> Result<std::string> { return fixed; };
  } else {
    // Read again before each dial: a supervisor that was started again may listen elsewhere.
    address = [state = agent.state_directory]() -> Result<std::string> {
      PERDURE_ASSIGN_OR_RETURN(const launch::SupervisorAddress file,
                               launch::ReadAddressFile(state));
      return file.address;
    };
  }
  const Result<launch::SupervisorAddress> file =
      AwaitAddressFile(agent.state_directory, options.supervisor.empty(), *signals);
  if (file.ok()) {
    agent.job = file->job;
    if (agent.token.empty()) agent.token = file->token;
  } else if (options.supervisor.empty()) {
    return Complain(file.status());
  }

  wire::GrpcRankPort ranks;
  agent.rank_address = ranks.address();
  wire::GrpcSupervisorPort supervisor(std::move(address));
  const Result<std::unique_ptr<agent::Agent>> made =
      agent::Agent::Create(std::move(agent), supervisor, ranks, RealClock());
  if (!made.ok()) return Complain(made.status());
  return (*made)->Run();
}

}  // namespace

void AddAgentVerb(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<AgentVerbOptions>();
  CLI::App* verb =
      app.add_subcommand("agent", "The agent of one node: starts, watches and ends ranks");
  verb->add_option("--supervisor", options->supervisor, "HOST:PORT of the supervisor");
  verb->add_option(
      "--state", options->state,
      "State directory: logs go there; without --supervisor its supervisor is dialled");
  verb->add_option("--node", options->node, "Name of this node (default: the host's name)");
  verb->add_option("--capacity", options->capacity, "Ranks this node can hold")
      ->check(CLI::Range(1, 1024));
  verb->add_option("--parent", options->parent)->group("");
  verb->callback([options, &exit_code] { exit_code = RunAgent(*options); });
}

}  // namespace perdure::cli
