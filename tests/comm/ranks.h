// Ranks as threads: each has its own lane, recorder, arbiter and connection to a store in memory.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
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
  RankParts(StoreServer& server, int rank)
      : rank(rank),
        store(server, Generation(1)),
        arbiter({.rank = Rank(rank)}, std::make_unique<MemoryKeyValue>(server, Generation(1))) {}

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
      ranks.push_back(std::make_unique<RankParts>(store, rank));
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
    CommunicatorParts parts = mine.parts();
    if (transport_ == Transport::kLoopback) {
      parts.connect = [this](const Group& group, Deadline) -> Result<std::unique_ptr<Backend>> {
        return MakeLoopbackBackend(HubOf(group), group.rank);
      };
    }
    return CreateCommunicator(options, parts, deadline);
  }

  StoreServer store{Generation(1)};

 private:
  // Where the threads of one communicator meet; gone with the last of them.
  std::shared_ptr<LoopbackHub> HubOf(const Group& group) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::weak_ptr<LoopbackHub>& known = hubs_[group.id];
    std::shared_ptr<LoopbackHub> hub = known.lock();
    if (hub == nullptr) known = hub = MakeLoopbackHub(group.size());
    return hub;
  }

  const Transport transport_;
  const int size_;
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<LoopbackHub>> hubs_;
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
