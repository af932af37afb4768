// Conversions of what agents, the supervisor and the command line say to each other.
#include "wire/convert.h"

namespace perdure::wire {
namespace {

v1::ProcessState StateToProto(ProcessState state) {
  return static_cast<v1::ProcessState>(static_cast<int>(state) + 1);
}

ProcessState StateFromProto(v1::ProcessState state) {
  if (state < v1::PROCESS_STATE_RUNNING || state > v1::PROCESS_STATE_GONE) {
    return ProcessState::kRunning;
  }
  return static_cast<ProcessState>(static_cast<int>(state) - 1);
}

template <class Message>
v1::FromRank* FillFrom(const FromRank<Message>& from, v1::NumberedEvent* to) {
  v1::FromRank* out = to->mutable_from_rank();
  out->set_generation(from.generation.value());
  out->set_rank(from.rank.value());
  return out;
}

void FillEvent(const AgentEvent& event, v1::NumberedEvent* to) {
  std::visit(Overloaded{
                 [&](const RankExited& m) {
                   v1::RankExited* out = to->mutable_rank_exited();
                   out->set_generation(m.generation.value());
                   out->set_rank(m.rank.value());
                   if (m.exit_code.has_value()) out->set_exit_code(*m.exit_code);
                   if (m.signal.has_value()) out->set_signal(*m.signal);
                   if (m.leaving.has_value()) Fill(*m.leaving, out->mutable_leaving());
                   out->set_lifetime_seconds(m.lifetime_seconds);
                   out->set_last_error_line(m.last_error_line);
                 },
                 [&](const RankStartFailed& m) {
                   v1::RankStartFailed* out = to->mutable_rank_start_failed();
                   out->set_generation(m.generation.value());
                   out->set_rank(m.rank.value());
                   out->set_reason(m.reason);
                 },
                 [&](const GenerationEnded& m) {
                   v1::GenerationEnded* out = to->mutable_generation_ended();
                   out->set_generation(m.generation.value());
                   for (const std::int64_t pid : m.unkillable) out->add_unkillable_pids(pid);
                 },
                 [&](const Evidence& m) {
                   v1::Evidence* out = to->mutable_evidence();
                   out->set_generation(m.generation.value());
                   out->set_node(m.node);
                   for (const auto& [rank, text] : m.texts) {
                     v1::RankText* entry = out->add_texts();
                     entry->set_rank(rank.value());
                     entry->set_text(text);
                   }
                 },
                 [&](const FromRank<StoreReady>& m) {
                   FillFrom(m, to)->mutable_store_ready()->set_address(m.message.address);
                 },
                 [&](const FromRank<RestoreDone>& m) {
                   Fill(m.message, FillFrom(m, to)->mutable_restore_done());
                 },
                 [&](const FromRank<CheckpointCommitted>& m) {
                   Fill(m.message, FillFrom(m, to)->mutable_checkpoint_committed());
                 },
                 [&](const FromRank<CheckpointFailed>& m) {
                   Fill(m.message, FillFrom(m, to)->mutable_checkpoint_failed());
                 },
                 [&](const FromRank<CheckpointSkipped>& m) {
                   Fill(m.message, FillFrom(m, to)->mutable_checkpoint_skipped());
                 },
                 [&](const FromRank<CommFailed>& m) {
                   Fill(m.message, FillFrom(m, to)->mutable_comm_failed());
                 },
                 [&](const FromRank<RankLeaving>& m) {
                   Fill(m.message, FillFrom(m, to)->mutable_leaving());
                 },
             },
             event);
}

Result<AgentEvent> FromRankFromProto(const v1::FromRank& from) {
  const Generation generation(from.generation());
  const Rank rank(from.rank());
  switch (from.message_case()) {
    case v1::FromRank::kStoreReady:
      return AgentEvent(
          FromRank<StoreReady>{generation, rank, StoreReady{from.store_ready().address()}});
    case v1::FromRank::kRestoreDone:
      return AgentEvent(FromRank<RestoreDone>{generation, rank, FromProto(from.restore_done())});
    case v1::FromRank::kCheckpointCommitted:
      return AgentEvent(
          FromRank<CheckpointCommitted>{generation, rank, FromProto(from.checkpoint_committed())});
    case v1::FromRank::kCheckpointFailed:
      return AgentEvent(
          FromRank<CheckpointFailed>{generation, rank, FromProto(from.checkpoint_failed())});
    case v1::FromRank::kCheckpointSkipped:
      return AgentEvent(
          FromRank<CheckpointSkipped>{generation, rank, FromProto(from.checkpoint_skipped())});
    case v1::FromRank::kCommFailed:
      return AgentEvent(FromRank<CommFailed>{generation, rank, FromProto(from.comm_failed())});
    case v1::FromRank::kLeaving:
      return AgentEvent(FromRank<RankLeaving>{generation, rank, FromProto(from.leaving())});
    case v1::FromRank::MESSAGE_NOT_SET:
      break;
  }
  return Status(Code::kInvalidArgument, "a message of a rank is empty or of a newer kind");
}

Result<AgentEvent> EventFromProto(const v1::NumberedEvent& from) {
  switch (from.kind_case()) {
    case v1::NumberedEvent::kRankExited: {
      const v1::RankExited& in = from.rank_exited();
      if (in.has_exit_code() == in.has_signal()) {
        return Status(Code::kInvalidArgument,
                      "a rank's exit must carry either an exit code or a signal");
      }
      RankExited to;
      to.generation = Generation(in.generation());
      to.rank = Rank(in.rank());
      if (in.has_exit_code()) to.exit_code = in.exit_code();
      if (in.has_signal()) to.signal = in.signal();
      if (in.has_leaving()) to.leaving = FromProto(in.leaving());
      to.lifetime_seconds = in.lifetime_seconds();
      to.last_error_line = in.last_error_line();
      return AgentEvent(std::move(to));
    }
    case v1::NumberedEvent::kRankStartFailed: {
      const v1::RankStartFailed& in = from.rank_start_failed();
      return AgentEvent(RankStartFailed{Generation(in.generation()), Rank(in.rank()), in.reason()});
    }
    case v1::NumberedEvent::kGenerationEnded: {
      const v1::GenerationEnded& in = from.generation_ended();
      GenerationEnded to;
      to.generation = Generation(in.generation());
      to.unkillable.assign(in.unkillable_pids().begin(), in.unkillable_pids().end());
      return AgentEvent(std::move(to));
    }
    case v1::NumberedEvent::kEvidence: {
      const v1::Evidence& in = from.evidence();
      Evidence to;
      to.generation = Generation(in.generation());
      to.node = in.node();
      for (const v1::RankText& text : in.texts()) {
        to.texts.emplace_back(Rank(text.rank()), text.text());
      }
      return AgentEvent(std::move(to));
    }
    case v1::NumberedEvent::kFromRank:
      return FromRankFromProto(from.from_rank());
    case v1::NumberedEvent::KIND_NOT_SET:
      break;
  }
  return Status(Code::kInvalidArgument, "an agent's event is empty or of a newer kind");
}

void FillReport(const NodeReport& from, v1::NodeReport* to) {
  to->set_node(from.node);
  for (const RankObservation& seen : from.ranks) {
    v1::RankObservation* out = to->add_ranks();
    out->set_generation(seen.generation.value());
    out->set_rank(seen.rank.value());
    out->set_pid(seen.pid);
    out->set_process(StateToProto(seen.process));
    out->set_cpu_seconds(seen.cpu_seconds);
    out->set_resident_bytes(seen.resident_bytes);
    out->set_report_age_ms(ToMs(seen.report_age));
    if (seen.report.has_value()) Fill(*seen.report, out->mutable_report());
  }
}

NodeReport ReportFromProto(const v1::NodeReport& from) {
  NodeReport to;
  to.node = from.node();
  for (const v1::RankObservation& seen : from.ranks()) {
    RankObservation out;
    out.generation = Generation(seen.generation());
    out.rank = Rank(seen.rank());
    out.pid = seen.pid();
    out.process = StateFromProto(seen.process());
    out.cpu_seconds = seen.cpu_seconds();
    out.resident_bytes = seen.resident_bytes();
    out.report_age = FromMs(seen.report_age_ms());
    if (seen.has_report()) out.report = FromProto(seen.report());
    to.ranks.push_back(std::move(out));
  }
  return to;
}

void FillStart(const StartRanks& from, v1::StartRanks* to) {
  to->set_generation(from.generation.value());
  to->set_world_size(from.world_size);
  to->set_group_rank(from.group_rank);
  to->set_local_world_size(from.local_world_size);
  to->set_master_addr(from.master_addr);
  to->set_master_port(from.master_port);
  to->set_restart_count(from.restart_count);
  Fill(from.welcome, to->mutable_welcome());
  for (const std::string& word : from.command) to->add_command(word);
  for (const auto& [name, value] : from.env) (*to->mutable_env())[name] = value;
  to->set_working_directory(from.working_directory);
  to->set_stop_grace_ms(ToMs(from.stop_grace));
  for (const StartRank& rank : from.ranks) {
    v1::StartRank* out = to->add_ranks();
    out->set_rank(rank.rank.value());
    out->set_local_rank(rank.local_rank);
  }
}

StartRanks StartFromProto(const v1::StartRanks& from) {
  StartRanks to;
  to.generation = Generation(from.generation());
  to.world_size = from.world_size();
  to.group_rank = from.group_rank();
  to.local_world_size = from.local_world_size();
  to.master_addr = from.master_addr();
  to.master_port = from.master_port();
  to.restart_count = from.restart_count();
  to.welcome = FromProto(from.welcome());
  to.command.assign(from.command().begin(), from.command().end());
  to.env.insert(from.env().begin(), from.env().end());
  to.working_directory = from.working_directory();
  to.stop_grace = FromMs(from.stop_grace_ms());
  for (const v1::StartRank& rank : from.ranks()) {
    to.ranks.push_back({Rank(rank.rank()), rank.local_rank()});
  }
  return to;
}

Result<SupervisorCommand> ToRanksFromProto(const v1::ToRanks& from) {
  ToRanks to;
  to.generation = Generation(from.generation());
  switch (from.command_case()) {
    case v1::ToRanks::kStoreAddress:
      to.command = StoreAddress{from.store_address().address()};
      return SupervisorCommand(std::move(to));
    case v1::ToRanks::kPeerDead:
      to.command = PeerDead{Rank(from.peer_dead().rank()), from.peer_dead().reason()};
      return SupervisorCommand(std::move(to));
    case v1::ToRanks::kCheckpointNow:
      to.command = CheckpointNow{};
      return SupervisorCommand(std::move(to));
    case v1::ToRanks::kDump:
      to.command = DumpRequest{from.dump().reason()};
      return SupervisorCommand(std::move(to));
    case v1::ToRanks::COMMAND_NOT_SET:
      break;
  }
  return Status(Code::kInvalidArgument, "a command to ranks is empty or of a newer kind");
}

}  // namespace

// ---------------------------------------------------------------- envelopes

v1::AgentToSupervisor ToProto(const AgentHello& hello) {
  v1::AgentToSupervisor envelope;
  v1::AgentHello* out = envelope.mutable_hello();
  out->set_job(hello.job);
  out->set_node(hello.node);
  for (const auto& [name, value] : hello.labels) (*out->mutable_labels())[name] = value;
  out->set_capacity(hello.capacity);
  out->set_token(hello.token);
  out->set_agent_pid(hello.agent_pid);
  out->set_incarnation(hello.incarnation);
  for (const RunningRank& running : hello.running) {
    v1::RunningRank* entry = out->add_running();
    entry->set_generation(running.generation.value());
    entry->set_rank(running.rank.value());
    entry->set_pid(running.pid);
  }
  return envelope;
}

AgentHello FromProto(const v1::AgentHello& hello) {
  AgentHello to;
  to.job = hello.job();
  to.node = hello.node();
  to.labels.insert(hello.labels().begin(), hello.labels().end());
  to.capacity = hello.capacity();
  to.token = hello.token();
  to.agent_pid = hello.agent_pid();
  to.incarnation = hello.incarnation();
  for (const v1::RunningRank& running : hello.running()) {
    to.running.push_back({Generation(running.generation()), Rank(running.rank()), running.pid()});
  }
  return to;
}

v1::AgentToSupervisor ToProto(const AgentMessage& message) {
  v1::AgentToSupervisor envelope;
  std::visit(Overloaded{
                 [&](const NodeReport& m) { FillReport(m, envelope.mutable_report()); },
                 [&](const NumberedEvent& m) {
                   envelope.mutable_event()->set_number(m.number);
                   FillEvent(m.event, envelope.mutable_event());
                 },
             },
             message);
  return envelope;
}

Result<AgentMessage> FromProto(const v1::AgentToSupervisor& envelope) {
  switch (envelope.kind_case()) {
    case v1::AgentToSupervisor::kReport:
      return AgentMessage(ReportFromProto(envelope.report()));
    case v1::AgentToSupervisor::kEvent: {
      PERDURE_ASSIGN_OR_RETURN(AgentEvent event, EventFromProto(envelope.event()));
      return AgentMessage(NumberedEvent{envelope.event().number(), std::move(event)});
    }
    case v1::AgentToSupervisor::kHello:
      return Status(Code::kInvalidArgument, "an agent said hello twice");
    case v1::AgentToSupervisor::KIND_NOT_SET:
      break;
  }
  return Status(Code::kInvalidArgument, "a message of an agent is empty or of a newer kind");
}

v1::SupervisorToAgent ToProto(const SupervisorHello& hello) {
  v1::SupervisorToAgent envelope;
  envelope.mutable_hello()->set_term(hello.term);
  envelope.mutable_hello()->set_lease_ms(ToMs(hello.lease));
  envelope.mutable_hello()->set_acknowledged(hello.acknowledged);
  return envelope;
}

SupervisorHello FromProto(const v1::SupervisorHello& hello) {
  return SupervisorHello{hello.term(), FromMs(hello.lease_ms()), hello.acknowledged()};
}

v1::SupervisorToAgent ToProto(const SupervisorCommand& command) {
  v1::SupervisorToAgent envelope;
  std::visit(Overloaded{
                 [&](const StartRanks& m) { FillStart(m, envelope.mutable_start_ranks()); },
                 [&](const StopGeneration& m) {
                   v1::StopGeneration* out = envelope.mutable_stop_generation();
                   out->set_generation(m.generation.value());
                   out->set_abort(m.abort);
                   out->set_reason(m.reason);
                   out->set_grace_ms(ToMs(m.grace));
                 },
                 [&](const FenceGeneration& m) {
                   envelope.mutable_fence_generation()->set_up_to(m.up_to.value());
                   envelope.mutable_fence_generation()->set_reason(m.reason);
                 },
                 [&](const CollectEvidence& m) {
                   v1::CollectEvidence* out = envelope.mutable_collect_evidence();
                   out->set_generation(m.generation.value());
                   out->set_budget_ms(ToMs(m.budget));
                   out->set_reason(m.reason);
                 },
                 [&](const SignalRank& m) {
                   v1::SignalRank* out = envelope.mutable_signal_rank();
                   out->set_generation(m.generation.value());
                   out->set_rank(m.rank.value());
                   out->set_signal(m.signal);
                 },
                 [&](const ToRanks& m) {
                   v1::ToRanks* out = envelope.mutable_to_ranks();
                   out->set_generation(m.generation.value());
                   std::visit(
                       Overloaded{
                           [&](const StoreAddress& c) {
                             out->mutable_store_address()->set_address(c.address);
                           },
                           [&](const PeerDead& c) {
                             out->mutable_peer_dead()->set_rank(c.rank.value());
                             out->mutable_peer_dead()->set_reason(c.reason);
                           },
                           [&](const CheckpointNow&) { out->mutable_checkpoint_now(); },
                           [&](const DumpRequest& c) { out->mutable_dump()->set_reason(c.reason); },
                       },
                       m.command);
                 },
                 [&](const Acknowledge& m) { envelope.mutable_acknowledge()->set_up_to(m.up_to); },
                 [&](const Shutdown& m) { envelope.mutable_shutdown()->set_reason(m.reason); },
             },
             command);
  return envelope;
}

Result<SupervisorCommand> FromProto(const v1::SupervisorToAgent& envelope) {
  switch (envelope.kind_case()) {
    case v1::SupervisorToAgent::kStartRanks:
      return SupervisorCommand(StartFromProto(envelope.start_ranks()));
    case v1::SupervisorToAgent::kStopGeneration: {
      const v1::StopGeneration& in = envelope.stop_generation();
      return SupervisorCommand(StopGeneration{Generation(in.generation()), in.abort(), in.reason(),
                                              FromMs(in.grace_ms())});
    }
    case v1::SupervisorToAgent::kFenceGeneration:
      return SupervisorCommand(FenceGeneration{Generation(envelope.fence_generation().up_to()),
                                               envelope.fence_generation().reason()});
    case v1::SupervisorToAgent::kCollectEvidence: {
      const v1::CollectEvidence& in = envelope.collect_evidence();
      return SupervisorCommand(
          CollectEvidence{Generation(in.generation()), FromMs(in.budget_ms()), in.reason()});
    }
    case v1::SupervisorToAgent::kSignalRank: {
      const v1::SignalRank& in = envelope.signal_rank();
      return SupervisorCommand(
          SignalRank{Generation(in.generation()), Rank(in.rank()), in.signal()});
    }
    case v1::SupervisorToAgent::kToRanks:
      return ToRanksFromProto(envelope.to_ranks());
    case v1::SupervisorToAgent::kAcknowledge:
      return SupervisorCommand(Acknowledge{envelope.acknowledge().up_to()});
    case v1::SupervisorToAgent::kShutdown:
      return SupervisorCommand(Shutdown{envelope.shutdown().reason()});
    case v1::SupervisorToAgent::kHello:
      return Status(Code::kInvalidArgument, "the supervisor said hello twice");
    case v1::SupervisorToAgent::KIND_NOT_SET:
      break;
  }
  return Status(Code::kInvalidArgument, "a message of the supervisor is empty or of a newer kind");
}

// ---------------------------------------------------------------- the command line

v1::ChaosRequest ToProto(const ChaosRequest& request) {
  v1::ChaosRequest out;
  switch (request.target) {
    case ChaosRequest::Target::kRank:
      out.set_target(v1::ChaosRequest::TARGET_RANK);
      break;
    case ChaosRequest::Target::kAgent:
      out.set_target(v1::ChaosRequest::TARGET_AGENT);
      break;
    case ChaosRequest::Target::kSupervisor:
      out.set_target(v1::ChaosRequest::TARGET_SUPERVISOR);
      break;
  }
  out.set_rank(request.rank.value());
  out.set_node(request.node);
  out.set_signal(request.signal);
  if (request.at_step.has_value()) out.set_at_step(request.at_step->value());
  return out;
}

Result<ChaosRequest> FromProto(const v1::ChaosRequest& request) {
  ChaosRequest to;
  switch (request.target()) {
    case v1::ChaosRequest::TARGET_RANK:
      to.target = ChaosRequest::Target::kRank;
      break;
    case v1::ChaosRequest::TARGET_AGENT:
      to.target = ChaosRequest::Target::kAgent;
      break;
    case v1::ChaosRequest::TARGET_SUPERVISOR:
      to.target = ChaosRequest::Target::kSupervisor;
      break;
    default:
      return Status(Code::kInvalidArgument, "a fault drill without a target");
  }
  to.rank = Rank(request.rank());
  to.node = request.node();
  to.signal = request.signal();
  if (request.has_at_step()) to.at_step = Step(request.at_step());
  return to;
}

}  // namespace perdure::wire
