// What must hold after every event, whatever happens: checked by the tests after each Step, from
// the outside, with a memory of its own.
//
//   SUP-1  one generation at a time: none starts before the processes of the one before are gone or
//          their node is written off, and numbers only grow
//   SUP-2  what is only seen has no effect (so every effect follows from a journalled event)
//   SUP-3  budgets are never exceeded
//   SUP-4  an isolated, lost or busy node gets no rank
//   SUP-5  a supervisor that is back, and agents that say hello to it, disturb no rank
#pragma once

#include <map>
#include <string>

#include "perdure/status.h"
#include "supervisor/core/step.h"

namespace perdure::core {

class InvariantChecker {
 public:
  explicit InvariantChecker(const Policy& policy) : policy_(policy) {}

  // `before` and `after`: the durable state around the Step of `event`. The message cites the
  // invariant.
  Status Check(const Durable& before, const Event& event, const Decision& decision,
               const Durable& after);

 private:
  Status CheckStart(const std::string& node, Generation generation, const Durable& after);

  const Policy policy_;
  std::map<std::string, Generation> running_;  // by node: may still have processes of it
  Generation highest_;
};

}  // namespace perdure::core
