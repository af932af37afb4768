// A rank for tests: speaks to its agent as the library does, without training anything. Says hello,
// announces a store (rank 0), reports step 1, prints each command, and leaves when told to stop.
// Arguments: the exit code.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/mutex.h"
#include "base/posix.h"
#include "wire/rank_port.h"

namespace perdure {
namespace {

int Main(int argc, char** argv) {
  RankHello hello;
  hello.job = GetEnv("PERDURE_JOB").value_or("");
  hello.generation = Generation(std::atoi(GetEnv("PERDURE_GENERATION").value_or("0").c_str()));
  hello.rank = Rank(std::atoi(GetEnv("RANK").value_or("-1").c_str()));
  hello.pid = ::getpid();
  hello.token = GetEnv("PERDURE_RANK_TOKEN").value_or("");

  Mutex mutex;
  CondVar changed;
  bool stop = false;
  wire::GrpcSupervisorLink link(GetEnv("PERDURE_AGENT").value_or(""));
  const auto say = [](const std::string& line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  };
  const Result<RankWelcome> welcome = link.Open(
      hello,
      [&](const RankCommand& command) {
        if (const auto* address = std::get_if<StoreAddress>(&command))
          say("store " + address->address);
        if (const auto* dead = std::get_if<PeerDead>(&command)) say("dead " + ToString(dead->rank));
        if (const auto* order = std::get_if<StopRank>(&command)) {
          say(fmt::format("stop abort={} {}", order->abort, order->reason));
          MutexLock lock(mutex);
          stop = true;
          changed.NotifyAll();
        }
        if (std::holds_alternative<Fenced>(command)) say("fenced");
      },
      [] {}, Deadline::After(std::chrono::seconds(20)));
  if (!welcome.ok()) {
    say("refused: " + welcome.status().ToString());
    return 3;
  }
  if (hello.rank == Rank(0) && !link.Send(StoreReady{"127.0.0.1:4711"}).ok()) return 4;
  RankReport report;
  report.generation = hello.generation;
  report.rank = hello.rank;
  report.completed_step = Step(1);
  report.phase = Phase::kCompute;
  if (!link.Send(report).ok()) return 4;
  say("reported");
  {
    MutexLock lock(mutex);
    while (!stop) changed.Wait(mutex);
  }
  if (!link.Send(RankLeaving{Code::kAborted, "told to stop", true}).ok()) return 4;
  link.Close(Deadline::After(std::chrono::seconds(5)));
  return argc > 1 ? std::atoi(argv[1]) : 0;
}

}  // namespace
}  // namespace perdure

int main(int argc, char** argv) {
  return perdure::Main(argc, argv);
}
