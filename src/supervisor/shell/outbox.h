// Commands on their way to agents, in order. What cannot be sent now (the stream is just being set
// up, or its queue is full) is kept and tried again; what is for an agent that went away is
// forgotten, because the core says everything that matters again when it says hello.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "control/agent_link.h"

namespace perdure {

class Outbox {
 public:
  static constexpr std::size_t kCommandsMost = 4096;  // per node

  explicit Outbox(AgentPort& port) : port_(port) {}

  // False: too many wait already; the command is dropped.
  bool Add(const std::string& node, SupervisorCommand command) {
    std::deque<SupervisorCommand>& waiting = waiting_[node];
    if (waiting.size() >= kCommandsMost) return false;
    waiting.push_back(std::move(command));
    return true;
  }
  void Forget(const std::string& node) { waiting_.erase(node); }

  void Flush() {
    for (auto& [node, waiting] : waiting_) {
      while (!waiting.empty() && port_.Send(node, waiting.front())) waiting.pop_front();
    }
  }

 private:
  AgentPort& port_;
  std::map<std::string, std::deque<SupervisorCommand>> waiting_;
};

}  // namespace perdure
