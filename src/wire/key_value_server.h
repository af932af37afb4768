// The control store on the network: a gRPC server around a StoreServer. Lives in rank 0.
#pragma once

#include <memory>
#include <string>

#include "control/store_server.h"
#include "perdure/clock.h"
#include "perdure/status.h"

namespace perdure {

class KeyValueServer {
 public:
  // Binds `host` on a port that the system chooses, or `port` when it is not 0. Only a loopback
  // address is taken: the store has neither encryption nor a password. `store` outlives this.
  static Result<std::unique_ptr<KeyValueServer>> Start(StoreServer& store, const std::string& host,
                                                       int port = 0);
  virtual ~KeyValueServer() = default;

  // "host:port", as clients are to dial it.
  virtual const std::string& address() const = 0;

  // Closes the store, answers whoever waits, and ends the server; requests that are still running
  // at the deadline are cut off.
  virtual void Stop(Deadline deadline) = 0;
};

}  // namespace perdure
