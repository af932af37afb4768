// Conversions of what ranks and agents say to each other.
#include "wire/convert.h"

namespace perdure::wire {
namespace {

v1::Phase PhaseToProto(Phase phase) {
  return static_cast<v1::Phase>(static_cast<int>(phase) + 1);
}

// A phase we do not know is one without a deadline of its own.
Phase PhaseFromProto(v1::Phase phase) {
  if (phase < v1::PHASE_INIT || phase > v1::PHASE_IDLE) return Phase::kIdle;
  return static_cast<Phase>(static_cast<int>(phase) - 1);
}

Code CodeFromName(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(Code::kInternal); ++i) {
    if (name == NameOf(static_cast<Code>(i))) return static_cast<Code>(i);
  }
  return Code::kInternal;
}

CommFailure::Class FailureClassFromName(const std::string& name) {
  using Class = CommFailure::Class;
  for (const Class known : {Class::kPeerDead, Class::kNotJoined, Class::kTimeout, Class::kMismatch,
                            Class::kOrderInversion, Class::kAborted, Class::kLocalError}) {
    if (name == NameOf(known)) return known;
  }
  return Class::kLocalError;
}

v1::SaveWhenBusy WhenBusyToProto(SaveWhenBusy when_busy) {
  switch (when_busy) {
    case SaveWhenBusy::kSkip:
      return v1::SAVE_WHEN_BUSY_SKIP;
    case SaveWhenBusy::kQueue:
      return v1::SAVE_WHEN_BUSY_QUEUE;
    case SaveWhenBusy::kWait:
      break;
  }
  return v1::SAVE_WHEN_BUSY_WAIT;
}

SaveWhenBusy WhenBusyFromProto(v1::SaveWhenBusy when_busy) {
  switch (when_busy) {
    case v1::SAVE_WHEN_BUSY_SKIP:
      return SaveWhenBusy::kSkip;
    case v1::SAVE_WHEN_BUSY_QUEUE:
      return SaveWhenBusy::kQueue;
    default:
      return SaveWhenBusy::kWait;
  }
}

v1::ResumeMode ModeToProto(ResumeMode mode) {
  switch (mode) {
    case ResumeMode::kRequire:
      return v1::RESUME_MODE_REQUIRE;
    case ResumeMode::kNever:
      return v1::RESUME_MODE_NEVER;
    case ResumeMode::kAuto:
      break;
  }
  return v1::RESUME_MODE_AUTO;
}

ResumeMode ModeFromProto(v1::ResumeMode mode) {
  switch (mode) {
    case v1::RESUME_MODE_REQUIRE:
      return ResumeMode::kRequire;
    case v1::RESUME_MODE_NEVER:
      return ResumeMode::kNever;
    default:
      return ResumeMode::kAuto;
  }
}

}  // namespace

void Fill(const RankReport& from, v1::RankReport* to) {
  to->set_generation(from.generation.value());
  to->set_rank(from.rank.value());
  to->set_step(from.step.value());
  to->set_completed_step(from.completed_step.value());
  to->set_phase(PhaseToProto(from.phase));
  to->set_phase_name(from.phase_name);
  to->set_time_in_phase_ms(ToMs(from.time_in_phase));
  if (from.phase_deadline.has_value()) to->set_phase_deadline_ms(ToMs(*from.phase_deadline));
  for (const CommProgress& progress : from.communicators) {
    v1::CommProgress* out = to->add_communicators();
    out->set_communicator(progress.communicator);
    out->set_submitted(progress.submitted);
    out->set_started(progress.started);
    out->set_completed(progress.completed);
    out->set_signature(progress.signature);
  }
  to->set_samples(from.samples);
  if (from.loss.has_value()) to->set_loss(*from.loss);
  to->set_loss_finite(from.loss_finite);
  v1::TimeSpent* spent = to->mutable_time_spent();
  spent->set_compute_seconds(from.time_spent.compute);
  spent->set_communication_seconds(from.time_spent.communication);
  spent->set_data_seconds(from.time_spent.data);
  spent->set_checkpoint_seconds(from.time_spent.checkpoint);
  spent->set_init_seconds(from.time_spent.init);
  spent->set_restore_seconds(from.time_spent.restore);
  spent->set_eval_seconds(from.time_spent.eval);
  spent->set_other_seconds(from.time_spent.other);
}

RankReport FromProto(const v1::RankReport& from) {
  RankReport to;
  to.generation = Generation(from.generation());
  to.rank = Rank(from.rank());
  to.step = Step(from.step());
  to.completed_step = Step(from.completed_step());
  to.phase = PhaseFromProto(from.phase());
  to.phase_name = from.phase_name();
  to.time_in_phase = FromMs(from.time_in_phase_ms());
  if (from.has_phase_deadline_ms()) to.phase_deadline = FromMs(from.phase_deadline_ms());
  for (const v1::CommProgress& progress : from.communicators()) {
    to.communicators.push_back({progress.communicator(), progress.submitted(), progress.started(),
                                progress.completed(), progress.signature()});
  }
  to.samples = from.samples();
  if (from.has_loss()) to.loss = from.loss();
  to.loss_finite = from.loss_finite();
  const v1::TimeSpent& spent = from.time_spent();
  to.time_spent.compute = spent.compute_seconds();
  to.time_spent.communication = spent.communication_seconds();
  to.time_spent.data = spent.data_seconds();
  to.time_spent.checkpoint = spent.checkpoint_seconds();
  to.time_spent.init = spent.init_seconds();
  to.time_spent.restore = spent.restore_seconds();
  to.time_spent.eval = spent.eval_seconds();
  to.time_spent.other = spent.other_seconds();
  return to;
}

void Fill(const RestoreDone& from, v1::RestoreDone* to) {
  to->set_fresh(from.fresh);
  to->set_step(from.step.value());
  to->set_from_generation(from.from_generation.value());
  for (const auto& [checkpoint, reason] : from.passed_over) {
    v1::PassedOver* out = to->add_passed_over();
    out->set_checkpoint(checkpoint);
    out->set_reason(reason);
  }
}

RestoreDone FromProto(const v1::RestoreDone& from) {
  RestoreDone to;
  to.fresh = from.fresh();
  to.step = Step(from.step());
  to.from_generation = Generation(from.from_generation());
  for (const v1::PassedOver& passed : from.passed_over()) {
    to.passed_over.emplace_back(passed.checkpoint(), passed.reason());
  }
  return to;
}

void Fill(const CheckpointCommitted& from, v1::CheckpointCommitted* to) {
  to->set_step(from.step.value());
  to->set_generation(from.generation.value());
  to->set_attempt(from.attempt);
  to->set_bytes(from.bytes);
  to->set_seconds(from.seconds);
  to->set_age_seconds(from.age_seconds);
}

CheckpointCommitted FromProto(const v1::CheckpointCommitted& from) {
  CheckpointCommitted to;
  to.step = Step(from.step());
  to.generation = Generation(from.generation());
  to.attempt = from.attempt();
  to.bytes = from.bytes();
  to.seconds = from.seconds();
  to.age_seconds = from.age_seconds();
  return to;
}

void Fill(const CheckpointFailed& from, v1::CheckpointFailed* to) {
  to->set_step(from.step.value());
  to->set_reason(from.reason);
  to->set_in_a_row(from.in_a_row);
}

CheckpointFailed FromProto(const v1::CheckpointFailed& from) {
  return CheckpointFailed{Step(from.step()), from.reason(), from.in_a_row()};
}

void Fill(const CheckpointSkipped& from, v1::CheckpointSkipped* to) {
  to->set_step(from.step.value());
  to->set_reason(from.reason);
  to->set_skipped(from.skipped);
}

CheckpointSkipped FromProto(const v1::CheckpointSkipped& from) {
  return CheckpointSkipped{Step(from.step()), from.reason(), from.skipped()};
}

void Fill(const CommFailed& from, v1::CommFailed* to) {
  to->set_failure_class(std::string(NameOf(from.failure.failure_class)));
  to->set_communicator(from.failure.communicator);
  to->set_sequence(from.failure.sequence);
  to->set_operation(from.failure.operation);
  to->set_bytes_done(from.failure.bytes_done);
  for (const CommFailure::Suspect& suspect : from.failure.suspects) {
    v1::Suspect* out = to->add_suspects();
    out->set_rank(suspect.rank.value());
    out->set_evidence(suspect.evidence);
  }
  to->set_message(from.message);
}

CommFailed FromProto(const v1::CommFailed& from) {
  CommFailed to;
  to.failure.failure_class = FailureClassFromName(from.failure_class());
  to.failure.communicator = from.communicator();
  to.failure.sequence = from.sequence();
  to.failure.operation = from.operation();
  to.failure.bytes_done = from.bytes_done();
  for (const v1::Suspect& suspect : from.suspects()) {
    to.failure.suspects.push_back({Rank(suspect.rank()), suspect.evidence()});
  }
  to.message = from.message();
  return to;
}

void Fill(const RankLeaving& from, v1::RankLeaving* to) {
  to->set_code(std::string(NameOf(from.code)));
  to->set_message(from.message);
  to->set_durable(from.durable);
}

RankLeaving FromProto(const v1::RankLeaving& from) {
  return RankLeaving{CodeFromName(from.code()), from.message(), from.durable()};
}

void Fill(const RankWelcome& from, v1::RankWelcome* to) {
  v1::RestorePolicy* restore = to->mutable_restore();
  restore->set_mode(ModeToProto(from.restore.mode));
  for (const std::string& name : from.restore.avoid) restore->add_avoid(name);
  for (const SampleRange& range : from.restore.skip_samples) {
    v1::SampleRange* out = restore->add_skip_samples();
    out->set_begin(range.begin);
    out->set_end(range.end);
  }
  restore->set_reason(from.restore.reason);
  v1::CheckpointSettings* checkpoint = to->mutable_checkpoint();
  checkpoint->set_directory(from.checkpoint.directory);
  checkpoint->set_interval_steps(from.checkpoint.interval_steps);
  checkpoint->set_async_save(from.checkpoint.async_save);
  checkpoint->set_keep_last_n(from.checkpoint.keep_last_n);
  checkpoint->set_stop_after(from.checkpoint.stop_after);
  checkpoint->set_staging_bytes_max(from.checkpoint.staging_bytes_max);
  checkpoint->set_when_busy(WhenBusyToProto(from.checkpoint.when_busy));
  checkpoint->set_keep_every_steps(from.checkpoint.keep_every_steps);
  checkpoint->set_interval_auto(from.checkpoint.interval_auto);
  checkpoint->set_max_lost_ms(from.checkpoint.max_lost_ms);
  checkpoint->set_init_from(from.checkpoint.init_from);
  checkpoint->mutable_init_names()->insert(from.checkpoint.init_names.begin(),
                                           from.checkpoint.init_names.end());
  to->set_past_interruptions(from.past.interruptions);
  to->set_past_up_ms(ToMs(from.past.up));
  to->set_init_deadline_ms(ToMs(from.init_deadline));
  to->set_restore_deadline_ms(ToMs(from.restore_deadline));
  to->set_collective_deadline_ms(ToMs(from.collective_deadline));
  to->set_not_joined_deadline_ms(ToMs(from.not_joined_deadline));
  to->set_checkpoint_deadline_ms(ToMs(from.checkpoint_deadline));
  to->set_preemption_grace_ms(ToMs(from.preemption_grace));
}

RankWelcome FromProto(const v1::RankWelcome& from) {
  RankWelcome to;
  to.restore.mode = ModeFromProto(from.restore().mode());
  to.restore.avoid.assign(from.restore().avoid().begin(), from.restore().avoid().end());
  for (const v1::SampleRange& range : from.restore().skip_samples()) {
    to.restore.skip_samples.push_back({range.begin(), range.end()});
  }
  to.restore.reason = from.restore().reason();
  to.checkpoint.directory = from.checkpoint().directory();
  to.checkpoint.interval_steps = from.checkpoint().interval_steps();
  to.checkpoint.async_save = from.checkpoint().async_save();
  to.checkpoint.keep_last_n = from.checkpoint().keep_last_n();
  to.checkpoint.stop_after = from.checkpoint().stop_after();
  to.checkpoint.staging_bytes_max = from.checkpoint().staging_bytes_max();
  to.checkpoint.when_busy = WhenBusyFromProto(from.checkpoint().when_busy());
  to.checkpoint.keep_every_steps = from.checkpoint().keep_every_steps();
  to.checkpoint.interval_auto = from.checkpoint().interval_auto();
  to.checkpoint.max_lost_ms = from.checkpoint().max_lost_ms();
  to.checkpoint.init_from = from.checkpoint().init_from();
  to.checkpoint.init_names.insert(from.checkpoint().init_names().begin(),
                                  from.checkpoint().init_names().end());
  to.past.interruptions = from.past_interruptions();
  to.past.up = FromMs(from.past_up_ms());
  to.init_deadline = FromMs(from.init_deadline_ms());
  to.restore_deadline = FromMs(from.restore_deadline_ms());
  to.collective_deadline = FromMs(from.collective_deadline_ms());
  to.not_joined_deadline = FromMs(from.not_joined_deadline_ms());
  to.checkpoint_deadline = FromMs(from.checkpoint_deadline_ms());
  to.preemption_grace = FromMs(from.preemption_grace_ms());
  return to;
}

// ---------------------------------------------------------------- envelopes

v1::RankToAgent ToProto(const RankHello& hello) {
  v1::RankToAgent envelope;
  v1::RankHello* out = envelope.mutable_hello();
  out->set_job(hello.job);
  out->set_generation(hello.generation.value());
  out->set_rank(hello.rank.value());
  out->set_pid(hello.pid);
  out->set_token(hello.token);
  return envelope;
}

RankHello FromProto(const v1::RankHello& hello) {
  return RankHello{hello.job(), Generation(hello.generation()), Rank(hello.rank()), hello.pid(),
                   hello.token()};
}

v1::RankToAgent ToProto(const RankMessage& message) {
  v1::RankToAgent envelope;
  std::visit(
      Overloaded{
          [&](const RankReport& m) { Fill(m, envelope.mutable_report()); },
          [&](const StoreReady& m) { envelope.mutable_store_ready()->set_address(m.address); },
          [&](const RestoreDone& m) { Fill(m, envelope.mutable_restore_done()); },
          [&](const CheckpointCommitted& m) { Fill(m, envelope.mutable_checkpoint_committed()); },
          [&](const CheckpointFailed& m) { Fill(m, envelope.mutable_checkpoint_failed()); },
          [&](const CheckpointSkipped& m) { Fill(m, envelope.mutable_checkpoint_skipped()); },
          [&](const CommFailed& m) { Fill(m, envelope.mutable_comm_failed()); },
          [&](const RankLeaving& m) { Fill(m, envelope.mutable_leaving()); },
      },
      message);
  return envelope;
}

Result<RankMessage> FromProto(const v1::RankToAgent& envelope) {
  switch (envelope.kind_case()) {
    case v1::RankToAgent::kReport:
      return RankMessage(FromProto(envelope.report()));
    case v1::RankToAgent::kStoreReady:
      return RankMessage(StoreReady{envelope.store_ready().address()});
    case v1::RankToAgent::kRestoreDone:
      return RankMessage(FromProto(envelope.restore_done()));
    case v1::RankToAgent::kCheckpointCommitted:
      return RankMessage(FromProto(envelope.checkpoint_committed()));
    case v1::RankToAgent::kCheckpointFailed:
      return RankMessage(FromProto(envelope.checkpoint_failed()));
    case v1::RankToAgent::kCheckpointSkipped:
      return RankMessage(FromProto(envelope.checkpoint_skipped()));
    case v1::RankToAgent::kCommFailed:
      return RankMessage(FromProto(envelope.comm_failed()));
    case v1::RankToAgent::kLeaving:
      return RankMessage(FromProto(envelope.leaving()));
    case v1::RankToAgent::kHello:
      return Status(Code::kInvalidArgument, "a rank said hello twice");
    case v1::RankToAgent::KIND_NOT_SET:
      break;
  }
  return Status(Code::kInvalidArgument, "a message of a rank is empty or of a newer kind");
}

v1::AgentToRank ToProto(const RankWelcome& welcome) {
  v1::AgentToRank envelope;
  Fill(welcome, envelope.mutable_welcome());
  return envelope;
}

v1::AgentToRank ToProto(const RankCommand& command) {
  v1::AgentToRank envelope;
  std::visit(
      Overloaded{
          [&](const StoreAddress& m) { envelope.mutable_store_address()->set_address(m.address); },
          [&](const PeerDead& m) {
            envelope.mutable_peer_dead()->set_rank(m.rank.value());
            envelope.mutable_peer_dead()->set_reason(m.reason);
          },
          [&](const Fenced& m) { envelope.mutable_fenced()->set_reason(m.reason); },
          [&](const StopRank& m) {
            envelope.mutable_stop()->set_abort(m.abort);
            envelope.mutable_stop()->set_reason(m.reason);
          },
          [&](const CheckpointNow&) { envelope.mutable_checkpoint_now(); },
          [&](const DumpRequest& m) { envelope.mutable_dump()->set_reason(m.reason); },
      },
      command);
  return envelope;
}

Result<RankCommand> FromProto(const v1::AgentToRank& envelope) {
  switch (envelope.kind_case()) {
    case v1::AgentToRank::kStoreAddress:
      return RankCommand(StoreAddress{envelope.store_address().address()});
    case v1::AgentToRank::kPeerDead:
      return RankCommand(
          PeerDead{Rank(envelope.peer_dead().rank()), envelope.peer_dead().reason()});
    case v1::AgentToRank::kFenced:
      return RankCommand(Fenced{envelope.fenced().reason()});
    case v1::AgentToRank::kStop:
      return RankCommand(StopRank{envelope.stop().abort(), envelope.stop().reason()});
    case v1::AgentToRank::kCheckpointNow:
      return RankCommand(CheckpointNow{});
    case v1::AgentToRank::kDump:
      return RankCommand(DumpRequest{envelope.dump().reason()});
    case v1::AgentToRank::kWelcome:
      return Status(Code::kInvalidArgument, "the agent welcomed this rank twice");
    case v1::AgentToRank::KIND_NOT_SET:
      break;
  }
  return Status(Code::kInvalidArgument, "a message of the agent is empty or of a newer kind");
}

}  // namespace perdure::wire
