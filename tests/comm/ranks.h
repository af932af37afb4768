// Ranks as threads: each has its own lane, recorder, arbiter and connection to a store in memory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/thread.h"
#include "comm/backends/loopback/loopback_backend.h"
#include "comm/world.h"
#include "control/memory_key_value.h"
#include "control/store_server.h"

namespace perdure::test {

enum class Transport { kLoopback, kGloo };

inline const char* NameOf(Transport transport) {
  return transport == Transport::kLoopback ? "Loopback" : "Gloo";
}

// Far enough for anything that is to succeed.
inline Deadline Soon() {
  return Deadline::After(std::chrono::seconds(20));
}

// What one rank of a test has.
struct RankParts {
  RankParts(StoreServer& server, int rank, int size)
      : rank(rank),
        store(server, Generation(1)),
        arbiter({.rank = Rank(rank), .size = size},
                std::make_unique<MemoryKeyValue>(server, Generation(1))) {}

  CommunicatorParts parts() { return {store, arbiter, lane, recorder, RealClock()}; }

  const int rank;
  MemoryKeyValue store;
  FailureArbiter arbiter;
  Lane lane;
  FlightRecorder recorder;
};

class World {
 public:
  World(Transport transport, int size) : transport_(transport), size_(size) {}

  Patience patience{std::chrono::seconds(20), std::chrono::seconds(20)};

  // Runs `body` on every rank, each with a connected communicator of its own.
  void Run(const std::function<void(Communicator&, RankParts&)>& body, int attempt = 1) {
    RunOwning([&](std::unique_ptr<Communicator> world, RankParts& mine) { body(*world, mine); },
              attempt);
  }

  void RunOwning(const std::function<void(std::unique_ptr<Communicator>, RankParts&)>& body,
                 int attempt = 1) {
    hub_ = MakeLoopbackHub(size_);
    RunParts([&](RankParts& mine) {
      auto communicator = Build(mine, attempt, Deadline::After(std::chrono::seconds(20)));
      ASSERT_TRUE(communicator.ok()) << communicator.status().ToString();
      body(*std::move(communicator), mine);
    });
  }

  // The same with communicators still to be built.
  void RunParts(const std::function<void(RankParts&)>& body) {
    std::vector<std::unique_ptr<RankParts>> ranks;
    for (int rank = 0; rank < size_; ++rank) {
      ranks.push_back(std::make_unique<RankParts>(store, rank, size_));
    }
    std::vector<Thread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      threads.emplace_back("rank", [&, rank] { body(*ranks[static_cast<std::size_t>(rank)]); });
    }
    threads.clear();
  }

  Result<std::unique_ptr<Communicator>> Build(RankParts& mine, int attempt, Deadline deadline) {
    CommunicatorOptions options;
    options.rank = Rank(mine.rank);
    options.size = size_;
    options.attempt = attempt;
    options.patience = patience;
    if (transport_ == Transport::kGloo) return CreateCommunicator(options, mine.parts(), deadline);
    return WrapBackend(options, mine.parts(), MakeLoopbackBackend(hub_, mine.rank));
  }

  StoreServer store{Generation(1)};

 private:
  const Transport transport_;
  const int size_;
  std::shared_ptr<LoopbackHub> hub_;
};

// The transports that this build has.
inline std::vector<Transport> Transports() {
#ifdef PERDURE_TEST_GLOO
  return {Transport::kLoopback, Transport::kGloo};
#else
  return {Transport::kLoopback};
#endif
}

}  // namespace perdure::test
