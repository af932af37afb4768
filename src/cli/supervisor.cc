// perdure supervisor: the daemon on the head node.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/log.h"
#include "base/posix.h"
#include "base/thread.h"
#include "cli/job_options.h"
#include "cli/verbs.h"
#include "supervisor/launch/address_file.h"
#include "supervisor/shell/supervisor.h"
#include "wire/agent_port.h"
#include "wire/channel.h"

namespace perdure::cli {
namespace {

struct SupervisorVerbOptions {
  JobOptions job;
  std::string listen = "127.0.0.1:0";
  int parent = 0;
};

// Hands signals to the supervisor until it is told to end.
class SignalForwarder {
 public:
  SignalForwarder(int signals, Supervisor& supervisor)
      : signals_(signals), end_(::eventfd(0, EFD_CLOEXEC)), supervisor_(supervisor) {
    thread_ = Thread("signals", [this] { Loop(); });
  }
  ~SignalForwarder() {
    const std::uint64_t one = 1;
    (void)!::write(end_.get(), &one, sizeof(one));
    thread_.Join();
  }

 private:
  void Loop() {
    for (;;) {
      pollfd fds[] = {{signals_, POLLIN, 0}, {end_.get(), POLLIN, 0}};
      ::poll(fds, 2, -1);
      if (fds[1].revents != 0) return;
      signalfd_siginfo info{};
      while (::read(signals_, &info, sizeof(info)) == sizeof(info)) {
        supervisor_.OnSignal(static_cast<int>(info.ssi_signo));
      }
    }
  }

  const int signals_;
  const UniqueFd end_;
  Supervisor& supervisor_;
  Thread thread_;
};

int RunSupervisor(const SupervisorVerbOptions& options) {
  if (options.parent > 0 && !DieWithParent(options.parent)) return 1;
  SetLogName("supervisor");
  const Status local = wire::CheckLocalAddress(options.listen);
  if (!local.ok()) return Complain(local);
  Result<JobFile> job = LoadJob(options.job);
  if (!job.ok()) return Complain(job.status());
  const Result<std::string> state = MakeStateDirectory(options.job, *job);
  if (!state.ok()) return Complain(state.status());
  const Result<int> signals = SignalDescriptor(false);
  if (!signals.ok()) return Complain(signals.status());

  // The token outlives a supervisor that is killed: its agents know it.
  const Result<launch::SupervisorAddress> before = launch::ReadAddressFile(*state);
  const std::string token = before.ok() && !before->token.empty() ? before->token : RandomHex(16);
  const std::string name = job->name;
  wire::GrpcAgentPort port(
      {options.listen, token, [&](const std::string& address) {
         Log().info("listening on {}", address);
         return launch::WriteAddressFile(*state, {name, address, token, ::getpid()});
       }});
  SupervisorOptions supervisor_options;
  supervisor_options.job = *std::move(job);
  supervisor_options.state_directory = *state;
  supervisor_options.token = token;
  supervisor_options.on_line = [](const std::string& line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  };
  const Result<std::unique_ptr<Supervisor>> supervisor =
      Supervisor::Create(std::move(supervisor_options), port, RealClock());
  if (!supervisor.ok()) return Complain(supervisor.status());
  port.ServeControl((*supervisor)->control());
  Result<int> code = 1;
  {
    const SignalForwarder forwarder(*signals, **supervisor);
    code = (*supervisor)->Run();
  }
  if (!code.ok()) return Complain(code.status());
  std::error_code ignored;
  std::filesystem::remove(launch::AddressFilePath(*state), ignored);
  return *code;
}

}  // namespace

void AddSupervisorVerb(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<SupervisorVerbOptions>();
  CLI::App* verb = app.add_subcommand("supervisor", "The daemon on the head node: leads one job");
  AddJobOptions(*verb, options->job);
  verb->add_option("--listen", options->listen,
                   "HOST:PORT for agents and the command line; loopback only until TLS is there");
  verb->add_option("--parent", options->parent)->group("");
  verb->callback([options, &exit_code] { exit_code = RunSupervisor(*options); });
}

}  // namespace perdure::cli
