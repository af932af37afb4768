// Events and effects in words: what transcripts, the log and `perdure events` show.
#include <fmt/format.h>

#include <type_traits>

#include "supervisor/core/step.h"

namespace perdure::core {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

std::string EndOf(const RankExited& exited) {
  std::string text = exited.signal ? fmt::format("signal {}", *exited.signal)
                                   : fmt::format("code {}", exited.exit_code.value_or(-1));
  if (exited.leaving && exited.leaving->code != Code::kOk) {
    text += fmt::format(" ({})", NameOf(exited.leaving->code));
  }
  return text;
}

std::string RunningOf(const AgentHello& hello) {
  if (hello.running.empty()) return "nothing running";
  return fmt::format("running {} ranks of g{}", hello.running.size(),
                     hello.running.front().generation.value());
}

}  // namespace

std::string_view NameOf(FailureClass failure_class) {
  switch (failure_class) {
    case FailureClass::kUserCode:
      return "user code";
    case FailureClass::kInfrastructure:
      return "infrastructure";
    case FailureClass::kPreemption:
      return "preemption";
  }
  return "unknown";
}

std::string_view NameOf(Timer timer) {
  switch (timer) {
    case Timer::kLaunch:
      return "launch";
    case Timer::kInquest:
      return "inquest";
    case Timer::kEvidence:
      return "evidence";
    case Timer::kStop:
      return "stop";
    case Timer::kLeave:
      return "leave";
    case Timer::kReturn:
      return "return";
  }
  return "unknown";
}

std::string_view NameOf(JobPhase phase) {
  switch (phase) {
    case JobPhase::kWaiting:
      return "waiting";
    case JobPhase::kRunning:
      return "running";
    case JobPhase::kJudging:
      return "judging";
    case JobPhase::kStopping:
      return "stopping";
    case JobPhase::kLeaving:
      return "leaving";
    case JobPhase::kDone:
      return "done";
  }
  return "unknown";
}

std::string_view KindOf(const Event& event) {
  static constexpr std::string_view kKinds[] = {"supervisor_started",
                                                "agent_hello",
                                                "rank_exited",
                                                "rank_start_failed",
                                                "generation_ended",
                                                "evidence_stored",
                                                "store_ready",
                                                "restore_done",
                                                "checkpoint_committed",
                                                "checkpoint_failed",
                                                "checkpoint_skipped",
                                                "comm_failed",
                                                "rank_leaving",
                                                "stop_requested",
                                                "chaos_requested",
                                                "claims_seen",
                                                "job_closed",
                                                "due",
                                                "nodes_lost",
                                                "suspected",
                                                "stalled",
                                                "verdict",
                                                "progress",
                                                "drill_due",
                                                "node_report",
                                                "node_disconnected",
                                                "tick"};
  static_assert(std::size(kKinds) == std::variant_size_v<EventBody>);
  return kKinds[event.body.index()];
}

bool IsJournalled(const Event& event) {
  return !std::holds_alternative<NodeReport>(event.body) &&
         !std::holds_alternative<NodeDisconnected>(event.body) &&
         !std::holds_alternative<Tick>(event.body);
}

std::string Describe(const Event& event) {
  const std::string detail = std::visit(
      Overloaded{
          [](const SupervisorStarted& e) { return fmt::format("term {}", e.term); },
          [](const AgentHello& e) {
            return fmt::format("node {} capacity {} {}", e.node, e.capacity, RunningOf(e));
          },
          [&](const RankExited& e) {
            return fmt::format("g{} rank {} node {} {}", e.generation.value(), e.rank.value(),
                               event.node, EndOf(e));
          },
          [&](const RankStartFailed& e) {
            return fmt::format("g{} rank {} node {}: {}", e.generation.value(), e.rank.value(),
                               event.node, e.reason);
          },
          [&](const GenerationEnded& e) {
            return fmt::format("g{} node {}{}", e.generation.value(), event.node,
                               e.unkillable.empty() ? "" : " with unkillable processes");
          },
          [&](const EvidenceStored& e) {
            return fmt::format("g{} node {} {} files", e.generation.value(), event.node,
                               e.files.size());
          },
          [](const FromRank<StoreReady>& e) {
            return fmt::format("g{} at {}", e.generation.value(), e.message.address);
          },
          [](const FromRank<RestoreDone>& e) {
            return e.message.fresh
                       ? fmt::format("g{} fresh", e.generation.value())
                       : fmt::format("g{} step {} of g{}", e.generation.value(),
                                     e.message.step.value(), e.message.from_generation.value());
          },
          [](const FromRank<CheckpointCommitted>& e) {
            return fmt::format("g{} step {} {} bytes in {:.3f} s", e.generation.value(),
                               e.message.step.value(), e.message.bytes, e.message.seconds);
          },
          [](const FromRank<CheckpointFailed>& e) {
            return fmt::format("g{} step {}: {}", e.generation.value(), e.message.step.value(),
                               e.message.reason);
          },
          [](const FromRank<CheckpointSkipped>& e) {
            return fmt::format("g{} step {}: {} ({} so far)", e.generation.value(),
                               e.message.step.value(), e.message.reason, e.message.skipped);
          },
          [](const FromRank<CommFailed>& e) {
            return fmt::format("g{} rank {} {}: {}", e.generation.value(), e.rank.value(),
                               perdure::NameOf(e.message.failure.failure_class), e.message.message);
          },
          [](const FromRank<RankLeaving>& e) {
            return fmt::format("g{} rank {} {}{}{}", e.generation.value(), e.rank.value(),
                               perdure::NameOf(e.message.code),
                               e.message.message.empty() ? "" : ": ", e.message.message);
          },
          [](const StopRequested& e) {
            return e.signal != 0 ? fmt::format("signal {}", e.signal) : e.reason;
          },
          [](const ChaosRequested& e) {
            const char* target = e.request.target == ChaosRequest::Target::kRank    ? "rank"
                                 : e.request.target == ChaosRequest::Target::kAgent ? "agent"
                                                                                    : "supervisor";
            return fmt::format("{} {} signal {}{}", target,
                               e.request.target == ChaosRequest::Target::kRank
                                   ? std::to_string(e.request.rank.value())
                                   : e.request.node,
                               e.request.signal,
                               e.request.at_step
                                   ? fmt::format(" at step {}", e.request.at_step->value())
                                   : " now");
          },
          [](const ClaimsSeen& e) { return fmt::format("highest g{}", e.highest.value()); },
          [](const JobClosed&) { return std::string(); },
          [](const Due& e) { return std::string(NameOf(e.timer)); },
          [](const NodesLost& e) {
            return fmt::format("{} silent {:.1f} s", fmt::join(e.nodes, ", "), e.silent_seconds);
          },
          [](const Suspected& e) { return fmt::format("rank {}", e.rank.value()); },
          [](const Stalled& e) {
            return fmt::format("g{} rank {}", e.generation.value(), e.rank.value());
          },
          [](const Verdict& e) {
            return e.rank ? fmt::format("g{} rank {} node {}", e.generation.value(),
                                        e.rank->value(), e.node)
                          : fmt::format("g{} nobody in particular", e.generation.value());
          },
          [](const Progress& e) {
            return fmt::format("g{} step {}", e.generation.value(), e.completed.value());
          },
          [](const DrillDue& e) { return fmt::format("{}", e.id); },
          [](const NodeReport& e) { return fmt::format("node {}", e.node); },
          [&](const NodeDisconnected&) { return fmt::format("node {}", event.node); },
          [](const Tick&) { return std::string(); },
      },
      event.body);
  std::string text(KindOf(event));
  if (!detail.empty()) text += " " + detail;
  return text;
}

std::string Describe(const Effect& effect) {
  return std::visit(
      Overloaded{
          [](const SendToNode& e) {
            const std::string what = std::visit(
                Overloaded{
                    [](const StartRanks& c) {
                      return fmt::format("start g{}", c.generation.value());
                    },
                    [](const StopGeneration& c) {
                      return fmt::format("{} g{}", c.abort ? "stop" : "preempt",
                                         c.generation.value());
                    },
                    [](const FenceGeneration& c) {
                      return fmt::format("fence up to g{}", c.up_to.value());
                    },
                    [](const CollectEvidence& c) {
                      return fmt::format("collect evidence of g{}", c.generation.value());
                    },
                    [](const SignalRank& c) {
                      return fmt::format("signal {} to rank {}", c.signal, c.rank.value());
                    },
                    [](const ToRanks& c) {
                      return std::visit(
                          Overloaded{
                              [](const StoreAddress& r) { return "store is " + r.address; },
                              [](const PeerDead& r) {
                                return fmt::format("rank {} is dead", r.rank.value());
                              },
                              [](const CheckpointNow&) { return std::string("checkpoint now"); },
                              [](const DumpRequest&) { return std::string("dump"); }},
                          c.command);
                    },
                    [](const Acknowledge& c) { return fmt::format("acknowledge {}", c.up_to); },
                    [](const Shutdown&) { return std::string("shut down"); },
                },
                e.command);
            return fmt::format("{} on {}", what, e.node);
          },
          [](const SignalAgent& e) {
            return fmt::format("signal {} to the agent of {}", e.signal, e.node);
          },
          [](const SignalSelf& e) { return fmt::format("signal {} to the supervisor", e.signal); },
          [](const ReadClaims&) { return std::string("read claims"); },
          [](const FinishJob& e) { return fmt::format("finish with exit code {}", e.exit_code); },
      },
      effect);
}

}  // namespace perdure::core
