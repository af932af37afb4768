// An agent's numbered events, kept until the supervisor has journalled them, and sent again after
// each reconnect.
//
// Bounded: exits, failed starts and ends are always kept (there are at most a few per process that
// was started); what ranks say beyond kOutboxMax waiting events is dropped and counted.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "control/agent_link.h"

namespace perdure::agent {

inline constexpr std::size_t kOutboxMax = 4096;

class Outbox {
 public:
  void Add(AgentEvent event);
  // Journalled up to this number: never sent again.
  void Acknowledge(std::uint64_t up_to);
  // A new connection: everything that is not acknowledged goes out again.
  void Rewind(std::uint64_t acknowledged);
  // Hands what was not sent on this connection to `send`, in order, until it says false.
  void Flush(const std::function<bool(const AgentMessage&)>& send);

  bool empty() const { return waiting_.empty(); }
  std::size_t size() const { return waiting_.size(); }
  std::uint64_t dropped() const { return dropped_; }

 private:
  std::deque<NumberedEvent> waiting_;
  std::uint64_t next_number_ = 1;
  std::uint64_t sent_up_to_ = 0;
  std::uint64_t dropped_ = 0;
};

}  // namespace perdure::agent
