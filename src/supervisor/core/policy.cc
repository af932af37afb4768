#include "supervisor/core/policy.h"

#include <fmt/format.h>

namespace perdure::core {
namespace {

struct Named {
  const char* name;
  Duration value;
};

Status Contradiction(const Named& less, const char* relation, const Named& more) {
  return Status(Code::kInvalidArgument,
                fmt::format("{} ({:g} s) must be {} {} ({:g} s)", less.name, Seconds(less.value),
                            relation, more.name, Seconds(more.value)));
}

}  // namespace

Status CheckPolicy(const Policy& policy) {
  const Named suspected{"rank suspected", policy.suspected};
  const Named node_silent{"node silent", policy.node_silent};
  const Named lease{"agent lease", policy.lease};
  for (const Named& each :
       {suspected, node_silent, lease, Named{"init deadline", policy.init},
        Named{"restore deadline", policy.restore}, Named{"checkpoint deadline", policy.checkpoint},
        Named{"step deadline", policy.step_given.value_or(policy.step_floor)},
        Named{"stop grace", policy.stop_grace},
        Named{"preemption grace", policy.preemption_grace}}) {
    if (each.value <= Duration::zero()) {
      return Status(Code::kInvalidArgument, fmt::format("{} must be positive", each.name));
    }
  }
  const Named reports{"three report intervals", 3 * policy.rank_report_interval};
  if (reports.value >= suspected.value) return Contradiction(reports, "less than", suspected);
  if (suspected.value > node_silent.value) {
    return Contradiction(suspected, "at most", node_silent);
  }
  if (node_silent.value >= lease.value) return Contradiction(node_silent, "less than", lease);
  const Named judged{"collective deadline plus evidence", policy.collective + policy.evidence};
  const Named step{"shortest step deadline", policy.step_given.value_or(policy.step_floor)};
  if (judged.value > step.value) return Contradiction(judged, "at most", step);
  if (policy.step_floor > policy.step_ceiling) {
    return Contradiction({"least step deadline", policy.step_floor}, "at most",
                         {"step ceiling", policy.step_ceiling});
  }
  return Ok();
}

}  // namespace perdure::core
