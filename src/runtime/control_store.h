// The control store of a generation, as one rank holds it: rank 0 hosts it, everybody is a client.
#pragma once

#include <memory>
#include <string>

#include "control/key_value.h"
#include "control/store_server.h"
#include "perdure/clock.h"
#include "runtime/environment.h"
#include "runtime/orders.h"
#include "wire/key_value_server.h"

namespace perdure {

class ControlStore {
 public:
  // Rank 0 starts the server (on a port that the system chooses, or where the launcher said) and
  // tells the agent through `link`; the others learn the address from `orders` or from the
  // launcher. A rank alone needs no server. Connections of another generation (launched: of another
  // restart) are refused.
  static Result<std::unique_ptr<ControlStore>> Open(const Environment& environment,
                                                    SupervisorLink& link, Orders& orders,
                                                    Deadline deadline);
  ~ControlStore();

  // A client of its own: closing it ends what waits on it and nothing else. The ControlStore
  // outlives it.
  std::unique_ptr<KeyValue> Connect();
  // "host:port"; empty when there is no server.
  const std::string& address() const { return address_; }

 private:
  explicit ControlStore(Generation fence) : fence_(fence) {}

  const Generation fence_;
  std::unique_ptr<StoreServer> store_;      // rank 0
  std::unique_ptr<KeyValueServer> server_;  // rank 0 of several
  std::string address_;
};

}  // namespace perdure
