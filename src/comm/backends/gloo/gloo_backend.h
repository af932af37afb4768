// Collectives over Gloo's TCP transport. See gloo_backend.cc for the algorithms, mesh.h for how the
// ranks find each other.
#pragma once

#include <memory>
#include <string>

#include "comm/backend.h"
#include "comm/failure_arbiter.h"
#include "control/key_value.h"
#include "perdure/clock.h"
#include "perdure/ids.h"
#include "perdure/status.h"

namespace perdure {

struct GlooPlace {
  std::string name;  // of the communicator, for people
  std::string id;    // unique in the generation
  int rank = 0;
  int size = 2;
  Generation generation{1};
  std::string interface;  // where to listen: this interface, else
  std::string host;       // this address
};

// Connects to every other rank, all within the deadline. kUnavailable names the ranks that have not
// come; the caller may try again with another id. kUnimplemented in a build without Gloo.
Result<std::unique_ptr<Backend>> ConnectGlooBackend(const GlooPlace& place, KeyValue& store,
                                                    FailureArbiter& arbiter, Deadline deadline);

}  // namespace perdure
