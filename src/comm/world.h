// Builds communicators. What a process has once (lane, recorder, arbiter, store) is made by the
// runtime and handed in.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator_impl.h"
#include "control/key_value.h"
#include "control/messages.h"
#include "perdure/comm.h"

namespace perdure {

// Where the Gloo backend listens: an interface by name, else an address of this machine.
struct GlooOptions {
  std::string interface;
  std::string host = "127.0.0.1";
};

// From PERDURE_COMM_IFACE and PERDURE_COMM_HOST.
GlooOptions GlooOptionsFromEnvironment();

struct CommunicatorOptions {
  std::string name = "world";
  // Counts the tries to build a communicator of this name; every rank uses the same. Another try
  // after a failed one has another number.
  int attempt = 1;
  Rank rank;
  int size = 1;
  Generation generation{1};
  Patience patience;
  GlooOptions gloo;
};

// What the process has once. Everything outlives the communicators.
struct CommunicatorParts {
  KeyValue& store;
  FailureArbiter& arbiter;
  Lane& lane;
  FlightRecorder& recorder;
  const Clock& clock;
  CommObserver* observer = nullptr;
};

// Every rank calls it; returns when all ranks are connected, or with an error at the deadline that
// names the ranks which have not come (COMM-1). One rank alone needs nobody. kUnimplemented when
// this build has no backend for more than one rank.
Result<std::unique_ptr<Communicator>> CreateCommunicator(const CommunicatorOptions& options,
                                                         const CommunicatorParts& parts,
                                                         Deadline deadline);

// The same over any backend: tests, and ranks as threads of one process.
std::unique_ptr<Communicator> WrapBackend(const CommunicatorOptions& options,
                                          const CommunicatorParts& parts,
                                          std::unique_ptr<Backend> backend);

// For heartbeats. Any thread.
CommProgress ProgressOf(const Communicator& communicator);

}  // namespace perdure
