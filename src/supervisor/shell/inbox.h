// What waits for the supervisor's loop: one bounded queue for everything that happens.
//
// Reports are dropped when it is full (the next one replaces them); everything else waits for room.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "control/agent_link.h"
#include "perdure/clock.h"
#include "supervisor/core/event.h"

namespace perdure {

struct FromAgent {
  std::string node;
  std::string incarnation;
  std::variant<AgentHello, AgentMessage, core::NodeDisconnected> what;
};

using Incoming = std::variant<FromAgent, core::StopRequested, core::ChaosRequested>;

class Inbox {
 public:
  explicit Inbox(std::size_t capacity) : capacity_(capacity) {}

  // False: full, or closed.
  bool TryPut(Incoming item);
  // Waits for room. False: closed, or no room until the deadline.
  bool Put(Incoming item, Deadline deadline);
  // Up to `most` items; waits for the first until the deadline.
  std::vector<Incoming> Take(std::size_t most, Deadline deadline);
  // Nothing is taken in any more, and nobody waits.
  void Close();

 private:
  const std::size_t capacity_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Incoming> items_ PERDURE_GUARDED_BY(mutex_);
  bool closed_ PERDURE_GUARDED_BY(mutex_) = false;
};

}  // namespace perdure
