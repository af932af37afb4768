// Collectives over Gloo's TCP transport. See gloo_backend.cc for the algorithms, mesh.h for how the
// ranks find each other.
#pragma once

#include <memory>
#include <string>

#include "comm/backend.h"
#include "comm/failure_arbiter.h"
#include "comm/group.h"
#include "control/key_value.h"
#include "perdure/clock.h"
#include "perdure/status.h"

namespace perdure {

// Where to listen: an interface by name, else an address of this machine.
struct GlooOptions {
  std::string interface;
  std::string host = "127.0.0.1";
};

// Connects to every other rank, all within the deadline. kUnavailable names the ranks that have not
// come; the caller may try again with another id. kUnimplemented in a build without Gloo.
Result<std::unique_ptr<Backend>> ConnectGlooBackend(const Group& group, const GlooOptions& options,
                                                    KeyValue& store, FailureArbiter& arbiter,
                                                    Deadline deadline);

}  // namespace perdure
