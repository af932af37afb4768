// One rank as a process: reduces in a loop until something happens, says what it was, and shows
// that it is still alive by leaving in good order. Started by process_test.
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"
#include "wire/key_value_client.h"
#include "wire/key_value_server.h"

namespace perdure {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void Say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

// argv: rank size store-address|- elements not-joined-ms running-ms operations
int Main(int argc, char** argv) {
  if (argc != 8) return 2;
  const int rank = std::atoi(argv[1]);
  const int size = std::atoi(argv[2]);
  std::string address = argv[3];
  const auto elements = static_cast<std::size_t>(std::atoll(argv[4]));
  const milliseconds not_joined(std::atoi(argv[5]));
  const milliseconds running(std::atoi(argv[6]));
  const int operations = std::atoi(argv[7]);

  StoreServer store{Generation(1)};
  std::unique_ptr<KeyValueServer> server;
  if (rank == 0) {
    auto started = KeyValueServer::Start(store, "127.0.0.1");
    if (!started.ok()) return 3;
    server = *std::move(started);
    address = server->address();
    Say("STORE " + address + ";");
  }
  const auto kv = ConnectKeyValue(address, Generation(1));
  FailureArbiter arbiter({.rank = Rank(rank)}, ConnectKeyValue(address, Generation(1)));
  Lane lane;
  FlightRecorder recorder;
  CommunicatorOptions options;
  options.rank = Rank(rank);
  options.size = size;
  options.patience = {not_joined, running};
  auto world = CreateCommunicator(options, {*kv, arbiter, lane, recorder, RealClock()},
                                  Deadline::After(seconds(20)));
  if (!world.ok()) {
    Say("INIT " + world.status().ToString() + ";");
    return 4;
  }
  std::vector<float> values(elements, 1.f);
  const TensorView view{
      .data = values.data(), .dtype = DType::kF32, .shape = {static_cast<std::int64_t>(elements)}};
  for (int i = 0; operations == 0 || i < operations; ++i) {
    const Deadline deadline = Deadline::After(seconds(30));
    const Status status = (*world)->AllReduce(view, ReduceOp::kAverage, deadline)->Wait(deadline);
    if (i == 0) Say("RUNNING;");
    if (status.ok()) continue;
    const CommFailure* failure = status.comm_failure();
    std::string suspects;
    if (failure != nullptr) {
      for (const CommFailure::Suspect& suspect : failure->suspects) {
        suspects += fmt::format("{} ", suspect.rank.value());
      }
    }
    Say(fmt::format("FAILED {} suspects {}: {};",
                    failure != nullptr ? NameOf(failure->failure_class) : "none", suspects,
                    status.ToString()));
    break;
  }
  world->reset();
  Say("LEFT;");
  if (server != nullptr) server->Stop(Deadline::After(seconds(1)));
  return 0;
}

}  // namespace
}  // namespace perdure

int main(int argc, char** argv) {
  return perdure::Main(argc, argv);
}
