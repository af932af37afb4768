// Does an all-reduce with deadlines, records and a header in front cost more than Gloo's own, over
// the same transport? Ranks are threads of this process, connected by TCP over loopback. Ours goes
// the whole way: Communicator, lane, backend. The two take turns; figures are bytes reduced per
// second of the slowest rank.
#include <fmt/format.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/transport/tcp/device.h>

#include <barrier>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/report.h"
#include "comm/world.h"
#include "control/memory_key_value.h"
#include "control/store_server.h"

namespace perdure::bench {
namespace {

using std::chrono::seconds;

struct Case {
  std::size_t bytes;
  const char* name;
  int operations;  // in one sample
};

constexpr Case kCases[] = {
    {4 * 1024, "4 KiB", 200}, {1024 * 1024, "1 MiB", 20}, {25 * 1024 * 1024, "25 MiB", 2}};
constexpr int kRepeats = 15;
constexpr int kWarmUps = 2;

void Fail(const std::string& why) {
  std::fputs((why + "\n").c_str(), stderr);
  std::exit(1);
}

std::shared_ptr<gloo::Context> GlooContext(gloo::rendezvous::Store& store, int rank, int size) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  context->connectFullMesh(store, device);
  return context;
}

void Measure(int size) {
  StoreServer store{Generation(1)};
  gloo::rendezvous::HashStore gloo_store;
  std::barrier together(size);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      MemoryKeyValue kv(store, Generation(1));
      FailureArbiter arbiter({.rank = Rank(rank)},
                             std::make_unique<MemoryKeyValue>(store, Generation(1)));
      Lane lane;
      FlightRecorder recorder;
      CommunicatorOptions options;
      options.rank = Rank(rank);
      options.size = size;
      auto ours = CreateCommunicator(options, {kv, arbiter, lane, recorder, RealClock()},
                                     Deadline::After(seconds(30)));
      if (!ours.ok()) Fail(ours.status().ToString());
      const auto theirs = GlooContext(gloo_store, rank, size);

      for (const Case& one : kCases) {
        std::vector<float> values(one.bytes / sizeof(float), 1.f);
        const TensorView view{.data = values.data(),
                              .dtype = DType::kF32,
                              .shape = {static_cast<std::int64_t>(values.size())}};
        const auto run_ours = [&] {
          const Deadline deadline = (*ours)->DefaultDeadline();
          const Status status = (*ours)->AllReduce(view, ReduceOp::kMax, deadline)->Wait(deadline);
          if (!status.ok()) Fail(status.ToString());
        };
        std::uint32_t tag = 0;
        const auto run_gloo = [&] {
          gloo::AllreduceOptions allreduce(theirs);
          allreduce.setTag(tag++);
          allreduce.setOutput(values.data(), values.size());
          allreduce.setReduceFunction(
              static_cast<void (*)(void*, const void*, const void*, std::size_t)>(
                  &gloo::max<float>));
          gloo::allreduce(allreduce);
        };
        const auto sample = [&](const std::function<void()>& run) {
          together.arrive_and_wait();
          const auto begin = std::chrono::steady_clock::now();
          for (int i = 0; i < one.operations; ++i) run();
          together.arrive_and_wait();
          const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
          return static_cast<double>(one.bytes) * one.operations / took.count() / 1e9;
        };
        std::vector<double> our_samples;
        std::vector<double> gloo_samples;
        for (int repeat = 0; repeat < kRepeats + kWarmUps; ++repeat) {
          const double our_value = sample(run_ours);
          const double gloo_value = sample(run_gloo);
          if (repeat < kWarmUps) continue;
          our_samples.push_back(our_value);
          gloo_samples.push_back(gloo_value);
        }
        if (rank == 0) {
          Report({.id = "all_reduce_gloo",
                  .what = fmt::format("{}, {} ranks", one.name, size),
                  .unit = "GB/s",
                  .limit_is = "gloo::allreduce, ring, same transport"},
                 our_samples, gloo_samples);
        }
      }
      together.arrive_and_wait();
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace perdure::bench

int main() {
  for (const int size : {2, 4}) perdure::bench::Measure(size);
  return 0;
}
