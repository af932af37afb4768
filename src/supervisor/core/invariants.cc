#include "supervisor/core/invariants.h"

#include <fmt/format.h>

namespace perdure::core {
namespace {

Status Broken(const std::string& what) {
  return Status(Code::kInternal, what);
}

bool IsAtWork(JobPhase phase) {
  return phase == JobPhase::kRunning || phase == JobPhase::kJudging;
}

}  // namespace

Status InvariantChecker::CheckStart(const std::string& node, Generation generation,
                                    const Durable& after) {
  if (generation < highest_) {
    return Broken(fmt::format("SUP-1: g{} starts after g{}", generation.value(), highest_.value()));
  }
  highest_ = generation;
  for (const auto& [other, running] : running_) {
    if (running < generation) {
      return Broken(fmt::format("SUP-1: g{} starts while {} may still run g{}", generation.value(),
                                other, running.value()));
    }
  }
  const auto found = after.nodes.find(node);
  if (found == after.nodes.end() || !found->second.present) {
    return Broken(fmt::format("SUP-4: {} gets ranks and is not here", node));
  }
  if (found->second.isolated_until) {
    return Broken(fmt::format("SUP-4: {} gets ranks and is isolated", node));
  }
  if (found->second.busy_with.value() != 0) {
    return Broken(fmt::format("SUP-4: {} gets ranks and still runs g{}", node,
                              found->second.busy_with.value()));
  }
  running_[node] = generation;
  return Ok();
}

Status InvariantChecker::Check(const Durable& before, const Event& event, const Decision& decision,
                               const Durable& after) {
  if (!IsJournalled(event) && !decision.effects.empty()) {
    return Broken(fmt::format("SUP-2: {} has an effect", KindOf(event)));
  }
  if (!IsJournalled(event) && !(before == after)) {
    return Broken(fmt::format("SUP-2: {} changes the durable state", KindOf(event)));
  }
  if (const auto* ended = std::get_if<GenerationEnded>(&event.body)) {
    const auto found = running_.find(event.node);
    if (found != running_.end() && found->second <= ended->generation) running_.erase(found);
  } else if (const auto* lost = std::get_if<NodesLost>(&event.body)) {
    for (const std::string& node : lost->nodes) running_.erase(node);
  } else if (const auto* hello = std::get_if<AgentHello>(&event.body)) {
    const auto known = before.nodes.find(hello->node);
    if (known != before.nodes.end() && known->second.incarnation != hello->incarnation) {
      running_.erase(hello->node);
    }
  } else if (const auto* due = std::get_if<Due>(&event.body)) {
    if (due->timer == Timer::kStop) running_.clear();  // those that remain are written off
  }
  bool stops = false;
  for (const Effect& effect : decision.effects) {
    const auto* send = std::get_if<SendToNode>(&effect);
    if (send == nullptr) continue;
    if (const auto* start = std::get_if<StartRanks>(&send->command)) {
      PERDURE_RETURN_IF_ERROR(CheckStart(send->node, start->generation, after));
    }
    if (const auto* stop = std::get_if<StopGeneration>(&send->command)) {
      stops = stops || stop->generation == before.generation;
    }
  }
  if (after.restarts_used > policy_.max_auto_restart) {
    return Broken(
        fmt::format("SUP-3: {} restarts of {}", after.restarts_used, policy_.max_auto_restart));
  }
  if (after.no_progress_restarts > policy_.max_no_progress_restarts) {
    return Broken(fmt::format("SUP-3: {} restarts without progress of {}",
                              after.no_progress_restarts, policy_.max_no_progress_restarts));
  }
  const bool starts_again = std::holds_alternative<SupervisorStarted>(event.body);
  bool keeps_agent = false;
  if (const auto* hello = std::get_if<AgentHello>(&event.body)) {
    const auto known = before.nodes.find(hello->node);
    keeps_agent = known != before.nodes.end() && known->second.incarnation == hello->incarnation;
  }
  if ((starts_again || keeps_agent) && IsAtWork(before.phase) && stops) {
    return Broken(fmt::format("SUP-5: {} ends the running generation", KindOf(event)));
  }
  return Ok();
}

}  // namespace perdure::core
