// Builds communicators. What a process has once (lane, recorder, arbiter, store) is made by the
// runtime and handed in.
#pragma once

#include <memory>
#include <string>

#include "comm/backends/gloo/gloo_backend.h"
#include "comm/communicator_impl.h"
#include "perdure/comm.h"

namespace perdure {

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

// Every rank calls it; returns when all ranks are connected, or with an error at the deadline that
// names the ranks which have not come (COMM-1). One rank alone needs nobody. kUnimplemented when
// this build has no backend for more than one rank.
Result<std::unique_ptr<Communicator>> CreateCommunicator(const CommunicatorOptions& options,
                                                         const CommunicatorParts& parts,
                                                         Deadline deadline);

// The same for any group; `parts.connect` is set unless this process is the only member.
Result<std::unique_ptr<Communicator>> ConnectGroup(Group group, const Patience& patience,
                                                   const CommunicatorParts& parts,
                                                   Deadline deadline);

// For heartbeats. Any thread.
CommProgress ProgressOf(const Communicator& communicator);

}  // namespace perdure
