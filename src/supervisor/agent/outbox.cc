#include "supervisor/agent/outbox.h"

#include <algorithm>

namespace perdure::agent {

void Outbox::Add(AgentEvent event) {
  const bool essential = std::holds_alternative<RankExited>(event) ||
                         std::holds_alternative<RankStartFailed>(event) ||
                         std::holds_alternative<GenerationEnded>(event);
  if (!essential && waiting_.size() >= kOutboxMax) {
    ++dropped_;
    return;
  }
  waiting_.push_back({next_number_++, std::move(event)});
}

void Outbox::Acknowledge(std::uint64_t up_to) {
  while (!waiting_.empty() && waiting_.front().number <= up_to) waiting_.pop_front();
  sent_up_to_ = std::max(sent_up_to_, up_to);
}

void Outbox::Rewind(std::uint64_t acknowledged) {
  Acknowledge(acknowledged);
  sent_up_to_ = acknowledged;
}

void Outbox::Flush(const std::function<bool(const AgentMessage&)>& send) {
  for (const NumberedEvent& event : waiting_) {
    if (event.number <= sent_up_to_) continue;
    if (!send(event)) return;
    sent_up_to_ = event.number;
  }
}

}  // namespace perdure::agent
