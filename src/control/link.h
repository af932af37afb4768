// How a rank speaks with its agent. The real one is a gRPC stream over a unix socket (wire); a rank
// without a supervisor has the null link; tests have one in memory.
#pragma once

#include <functional>
#include <memory>
#include <variant>

#include "control/messages.h"

namespace perdure {

using RankMessage = std::variant<RankReport, StoreReady, RestoreDone, CheckpointCommitted,
                                 CheckpointFailed, CheckpointSkipped, CommFailed, RankLeaving>;
using RankCommand =
    std::variant<StoreAddress, PeerDead, Fenced, StopRank, CheckpointNow, DumpRequest>;

// Thread-safe. Commands arrive on the link's own thread and must return quickly.
class SupervisorLink {
 public:
  virtual ~SupervisorLink() = default;

  // Says hello and waits for the welcome. `on_command` is called from then on, until Close returns;
  // `on_lost` at most once, when the agent is gone for good.
  virtual Result<RankWelcome> Open(const RankHello& hello,
                                   std::function<void(const RankCommand&)> on_command,
                                   std::function<void()> on_lost, Deadline deadline) = 0;

  // Never blocks. Reports replace an unsent report; everything else is kept in order, up to a
  // bound, and kResourceExhausted says that the bound was reached.
  virtual Status Send(const RankMessage& message) = 0;

  // Sends what is queued, then closes; at most until the deadline.
  virtual void Close(Deadline deadline) = 0;
};

}  // namespace perdure
