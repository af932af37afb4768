#include "supervisor/core/step.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "supervisor/core/decider.h"

namespace perdure::core {
namespace {

constexpr std::size_t kCommitsKept = 64;

std::string Where(Rank rank, const std::string& node) {
  return node.empty() ? fmt::format("rank {}", rank.value())
                      : fmt::format("rank {} on {}", rank.value(), node);
}

}  // namespace

Decision Step(const Policy& policy, State& state, const Event& event) {
  if (!IsJournalled(event)) {
    Decision decision;
    See(policy, state, event, decision);
    return decision;
  }
  Notice(policy, state, event);
  return Decider(policy, state.durable, event).Run();
}

Decision Decider::Run() {
  if (event_.number != 0) {
    const auto node = d_.nodes.find(event_.node);
    if (node != d_.nodes.end() && node->second.incarnation == event_.incarnation) {
      // Sent again after a reconnect: it was acted upon the first time.
      if (event_.number <= node->second.acknowledged) return {};
      node->second.acknowledged = event_.number;
    }
  }
  std::visit([this](const auto& body) { On(body); }, event_.body);
  if (!decision_.sentence.empty()) d_.last_sentence = decision_.sentence;
  return std::move(decision_);
}

void Decider::Say(const std::string& sentence) {
  if (!decision_.sentence.empty()) decision_.sentence += "; ";
  decision_.sentence += sentence;
}

void Decider::Detail(const std::string& detail) {
  if (!decision_.detail.empty()) decision_.detail += ", ";
  decision_.detail += detail;
}

void Decider::ClearTimers() {
  std::optional<Duration> keep;
  if (const auto found = d_.timers.find(Timer::kReturn); found != d_.timers.end()) {
    keep = found->second;
  }
  d_.timers.clear();
  if (keep) d_.timers[Timer::kReturn] = *keep;
}

Placed* Decider::PlacedOn(const std::string& node) {
  for (Placed& placed : d_.placed) {
    if (placed.node == node) return &placed;
  }
  return nullptr;
}

bool Decider::AllEnded(const Placed& placed) const {
  for (int i = 0; i < placed.count; ++i) {
    if (d_.ends.count(Rank(placed.first_rank.value() + i)) == 0) return false;
  }
  return true;
}

void Decider::On(const SupervisorStarted& e) {
  d_.term = e.term;
  d_.wall_epoch_ms = e.wall_epoch_ms;
  d_.term_started = t_;
  d_.highest_generation = std::max(d_.highest_generation, e.highest_claim);
  if (d_.closed) {
    // The last run of the job ended in good order; this is a new one on the same state directory.
    // What is known about checkpoints and nodes stays, what was counted begins anew.
    Durable fresh;
    fresh.term = d_.term;
    fresh.wall_epoch_ms = d_.wall_epoch_ms;
    fresh.term_started = t_;
    fresh.begun = t_;
    fresh.highest_generation = d_.highest_generation;
    fresh.commits = d_.commits;
    fresh.best_committed = d_.best_committed;
    fresh.avoid = d_.avoid;
    fresh.load_crashes = d_.load_crashes;
    fresh.nodes = d_.nodes;
    for (auto& [name, node] : fresh.nodes) node.present = false;
    if (const auto found = d_.timers.find(Timer::kReturn); found != d_.timers.end()) {
      fresh.timers.insert(*found);
    }
    d_ = std::move(fresh);
    Say(fmt::format("{} begins again; waiting for {} nodes", policy_.job, policy_.nodes));
    return;
  }
  if (e.term <= 1) {
    d_.begun = t_;
    Say(fmt::format("{} begins; waiting for {} nodes", policy_.job, policy_.nodes));
    return;
  }
  if (d_.phase == JobPhase::kDone) {
    Finish(d_.exit_code, d_.afterwards.sentence, d_.afterwards.next_command);
    return;
  }
  std::vector<std::string> awaited;
  for (const auto& [name, node] : d_.nodes) {
    if (node.present) awaited.push_back(name);
  }
  Say(fmt::format(
      "the supervisor is back (term {}), {}; up to {:g} s for {}", e.term,
      active() ? fmt::format("generation {} goes on", d_.generation.value())
               : std::string("no generation is running"),
      Seconds(policy_.agents_awaited),
      awaited.empty() ? std::string("agents") : fmt::format("{}", fmt::join(awaited, ", "))));
  TryLaunch();
}

void Decider::On(const AgentHello& e) {
  Node& node = d_.nodes[e.node];
  const bool known = !node.name.empty();
  const bool returned = known && !node.present;
  const bool replaced = known && node.incarnation != e.incarnation;
  node.name = e.node;
  if (node.incarnation != e.incarnation) node.acknowledged = 0;
  node.incarnation = e.incarnation;
  const auto address = e.labels.find("address");
  node.address = address == e.labels.end() ? "127.0.0.1" : address->second;
  node.capacity = e.capacity;
  node.agent_pid = e.agent_pid;
  node.term_seen = d_.term;
  node.present = true;
  if (d_.phase == JobPhase::kDone) {
    Send(e.node, Shutdown{"the job is over"});
    return;
  }
  if (!known || returned) {
    std::string sentence = fmt::format("node {} {}", e.node, known ? "is back" : "has joined");
    if (node.isolated_until) {
      sentence += fmt::format("; it stays isolated: {}", node.isolation_reason);
    } else if (e.capacity < policy_.ranks_per_node) {
      sentence += fmt::format("; it holds {} ranks and {} are needed, so it is not used",
                              e.capacity, policy_.ranks_per_node);
    } else if (active()) {
      sentence += "; parked as a spare";
    }
    Say(sentence);
  }
  Reconcile(e, replaced);
  TryLaunch();
}

void Decider::On(const RankExited& e) {
  if (!IsCurrent(e.generation)) return;
  if (d_.ends.count(e.rank) != 0) return;
  RankEnd end;
  end.exit_code = e.exit_code;
  end.signal = e.signal;
  end.asked = !at_work();
  if (e.leaving) {
    end.said = e.leaving->code;
    end.durable = e.leaving->durable;
  } else if (const auto left = d_.left.find(e.rank); left != d_.left.end()) {
    end.said = left->second;
    end.durable = d_.left_durable[e.rank];
  } else {
    // It said nothing: with checkpoints to save, nothing is known to be safe.
    end.durable = !policy_.checkpoints || (e.exit_code && *e.exit_code == 0);
    end.said = Code::kOk;
  }
  d_.ends[e.rank] = end;
  const Cause cause = CauseOf(e);
  if (cause.instant) d_.instant_witnesses[SignatureOf(cause)].insert(cause.node);
  if (!at_work()) {
    if (!end.exit_code || *end.exit_code != 0) {
      Detail(fmt::format("{} ended as a consequence", Where(e.rank, event_.node)));
    }
    if (d_.phase == JobPhase::kLeaving) FinishLeaving();
    return;
  }
  const bool good = e.exit_code && *e.exit_code == 0 && end.durable;
  if (good) {
    if (static_cast<int>(d_.ends.size()) < policy_.world_size()) return;
    const bool all_good = std::all_of(d_.ends.begin(), d_.ends.end(), [](const auto& entry) {
      return entry.second.exit_code && *entry.second.exit_code == 0;
    });
    if (all_good) {
      std::string sentence = fmt::format("all {} ranks are done", policy_.world_size());
      if (record().completed.value() >= 0) {
        sentence += fmt::format(" after step {}", record().completed.value());
      }
      d_.afterwards = Afterwards{true, 0, sentence, "", {}};
      Say(d_.afterwards.sentence);
      StopCurrent(true, policy_.stop_grace, "the job is done");
      ProceedWhenGone();
      return;
    }
    JudgeNow();
    return;
  }
  const bool consequence =
      end.said == Code::kCommFailed || end.said == Code::kAborted || end.said == Code::kFenced;
  if (end.said == Code::kFenced) Do(ReadClaims{});
  if (!consequence && !cause.instant) {
    Decide(cause);
    return;
  }
  // A consequence of something not yet known, or a program that fails at once: others are about to
  // tell more.
  if (!d_.suspected_cause || (d_.suspected_cause_is_consequence && !consequence)) {
    d_.suspected_cause = cause;
    d_.suspected_cause_is_consequence = consequence;
  }
  if (d_.phase == JobPhase::kRunning) {
    BeginJudging(policy_.inquest);
    Say(fmt::format("{}; waiting {:g} s for the first cause", cause.head,
                    Seconds(policy_.inquest)));
  }
  if (static_cast<int>(d_.ends.size()) == policy_.world_size()) JudgeNow();
}

void Decider::On(const RankStartFailed& e) {
  if (!IsCurrent(e.generation) || !at_work()) return;
  RankEnd end;
  end.exit_code = 127;
  end.durable = false;
  d_.ends[e.rank] = end;
  Cause cause;
  cause.rank = e.rank;
  cause.node = event_.node;
  cause.exit_code = 127;
  cause.error_line = e.reason;
  cause.instant = true;
  cause.head = fmt::format("{} could not be started: {}", Where(e.rank, event_.node), e.reason);
  cause.last_progress = t_;
  d_.instant_witnesses[SignatureOf(cause)].insert(cause.node);
  if (!d_.suspected_cause || d_.suspected_cause_is_consequence) {
    d_.suspected_cause = cause;
    d_.suspected_cause_is_consequence = false;
  }
  if (d_.phase == JobPhase::kRunning) {
    BeginJudging(policy_.inquest);
    Say(cause.head);
  }
}

void Decider::On(const GenerationEnded& e) {
  Node& node = d_.nodes[event_.node];
  if (!e.unkillable.empty()) {
    // They hold the device and may still write: nothing is started beside them.
    node.busy_with = std::max(node.busy_with, e.generation);
    Isolate(event_.node,
            fmt::format("{} processes of g{} cannot be killed (pid {})", e.unkillable.size(),
                        e.generation.value(), e.unkillable.front()),
            true);
  } else if (node.busy_with.value() != 0 && e.generation >= node.busy_with) {
    node.busy_with = Generation();
    Say(fmt::format("node {} has ended what it still ran of g{}", event_.node,
                    e.generation.value()));
  }
  if (IsCurrent(e.generation)) {
    if (Placed* placed = PlacedOn(event_.node)) {
      if (!at_work() || AllEnded(*placed)) placed->gone = true;
    }
    if (d_.phase == JobPhase::kLeaving) FinishLeaving();
    ProceedWhenGone();
  } else {
    TryLaunch();
  }
}

void Decider::On(const EvidenceStored& e) {
  if (!IsCurrent(e.generation) || d_.phase != JobPhase::kJudging) return;
  d_.evidence_awaited.erase(event_.node);
  if (!d_.stalled.empty() && d_.evidence_awaited.empty()) {
    d_.timers.erase(Timer::kEvidence);
    d_.verdict_wanted = true;
  }
}

void Decider::On(const FromRank<StoreReady>& e) {
  if (!IsCurrent(e.generation) || !at_work()) return;
  d_.store_address = e.message.address;
  for (const Placed& placed : d_.placed) {
    if (!placed.gone) Send(placed.node, ToRanks{d_.generation, StoreAddress{d_.store_address}});
  }
}

void Decider::On(const FromRank<RestoreDone>& e) {
  if (!IsCurrent(e.generation)) return;
  GenerationRecord& r = record();
  r.restored = t_;
  r.fresh = e.message.fresh;
  r.restored_step = e.message.fresh ? perdure::Step(-1) : e.message.step;
  r.restored_from = e.message.from_generation;
  // What was passed over is no longer on the lineage.
  while (!d_.commits.empty() && d_.commits.back().step > r.restored_step) d_.commits.pop_back();
  std::string sentence =
      r.fresh ? fmt::format("generation {} begins afresh at step 0", d_.generation.value())
              : fmt::format("generation {} goes on from step {} of g{}", d_.generation.value(),
                            r.restored_step.value(), r.restored_from.value());
  for (const auto& [name, reason] : e.message.passed_over) {
    sentence += fmt::format("; passed over {}: {}", name, reason);
  }
  Say(sentence);
}

void Decider::On(const FromRank<CheckpointCommitted>& e) {
  // SUP-1: only the current generation's commits extend the lineage.
  if (!IsCurrent(e.generation)) return;
  const CheckpointCommitted& commit = e.message;
  d_.saves_failed_in_a_row = 0;
  d_.commits.push_back({commit.step, e.generation, t_, commit.bytes, commit.seconds});
  if (d_.commits.size() > kCommitsKept) d_.commits.pop_front();
  if (commit.step <= d_.best_committed) return;
  d_.best_committed = commit.step;
  d_.no_progress_restarts = 0;
  d_.lost_in_streak.clear();
  d_.instant_signature.clear();
  d_.instant_repeats = 0;
  d_.instant_nodes.clear();
}

void Decider::On(const FromRank<CheckpointFailed>& e) {
  if (!IsCurrent(e.generation)) return;
  d_.saves_failed_in_a_row = e.message.in_a_row;
  Say(fmt::format("the checkpoint of step {} failed ({} in a row): {}", e.message.step.value(),
                  e.message.in_a_row, e.message.reason));
}

void Decider::On(const FromRank<CheckpointSkipped>& e) {
  if (!IsCurrent(e.generation)) return;
  Say(fmt::format("the checkpoint of step {} was skipped ({} so far): {}", e.message.step.value(),
                  e.message.skipped, e.message.reason));
}

void Decider::On(const FromRank<CommFailed>& e) {
  if (!IsCurrent(e.generation) || !at_work()) return;
  Accusation accusation;
  accusation.by = e.rank;
  accusation.failure_class = e.message.failure.failure_class;
  for (const CommFailure::Suspect& suspect : e.message.failure.suspects) {
    accusation.suspects.push_back(suspect.rank);
  }
  accusation.message = e.message.message;
  d_.accusations.push_back(std::move(accusation));
  if (d_.phase == JobPhase::kJudging) return;
  const bool dead = e.message.failure.failure_class == CommFailure::Class::kPeerDead;
  BeginJudging(policy_.inquest);
  Say(fmt::format("a collective failed on {}: {}", Where(e.rank, event_.node), e.message.message));
  // A peer that is dead will be heard of; one that has not joined must be looked at.
  if (!dead) AskForEvidence(decision_.sentence);
}

void Decider::On(const FromRank<RankLeaving>& e) {
  if (!IsCurrent(e.generation)) return;
  d_.left[e.rank] = e.message.code;
  d_.left_durable[e.rank] = e.message.durable;
}

void Decider::On(const StopRequested& e) {
  if (d_.phase == JobPhase::kDone) return;
  const bool again = d_.stop.has_value();
  if (!again || e.signal != 0) d_.stop = e;
  const int code = d_.stop->signal != 0 ? 128 + d_.stop->signal : 0;
  const std::string who = e.signal != 0
                              ? fmt::format("signal {}", e.signal)
                              : (e.reason.empty() ? std::string("asked to stop") : e.reason);
  if (d_.phase == JobPhase::kWaiting) {
    Finish(code, who + ": nothing was running", "");
    return;
  }
  if (again) {
    d_.afterwards = Afterwards{true, code, who + " again: ended at once", "", {}};
    if (d_.phase == JobPhase::kStopping) {
      for (const Placed& placed : d_.placed) {
        if (!placed.gone) Send(placed.node, StopGeneration{d_.generation, true, who, Duration{}});
      }
    } else {
      StopCurrent(true, Duration{}, who);
    }
    Say(d_.afterwards.sentence);
    return;
  }
  if (d_.phase == JobPhase::kStopping) {
    if (!d_.afterwards.finish) {
      d_.afterwards = Afterwards{true, code, who + " while a generation was being ended", "", {}};
    }
    Say(d_.afterwards.sentence);
    return;
  }
  d_.phase = JobPhase::kLeaving;
  ClearTimers();
  SetTimer(Timer::kLeave, t_ + policy_.preemption_grace + policy_.stop_margin);
  for (const Placed& placed : d_.placed) {
    if (!placed.gone) {
      Send(placed.node, StopGeneration{d_.generation, false, who, policy_.preemption_grace});
    }
  }
  Say(fmt::format("{}: one coordinated checkpoint, then the end (up to {:g} s)", who,
                  Seconds(policy_.preemption_grace)));
  FinishLeaving();
}

void Decider::On(const ChaosRequested& e) {
  Drill drill;
  drill.id = static_cast<std::int64_t>(d_.drills.size()) + 1;
  drill.target = static_cast<int>(e.request.target);
  drill.rank = e.request.rank;
  drill.node = e.request.node;
  drill.signal = e.request.signal;
  drill.at_step = e.request.at_step;
  d_.drills.push_back(drill);
  Say(fmt::format("fault drill {}: {}", drill.id,
                  Describe(event_).substr(KindOf(event_).size() + 1)));
  if (!drill.at_step) On(DrillDue{drill.id});
}

void Decider::On(const DrillDue& e) {
  for (Drill& drill : d_.drills) {
    if (drill.id != e.id || drill.done) continue;
    drill.done = true;
    switch (static_cast<ChaosRequest::Target>(drill.target)) {
      case ChaosRequest::Target::kRank: {
        const std::string node = NodeOf(d_, drill.rank);
        if (!active() || node.empty() || d_.ends.count(drill.rank) != 0) {
          Say(fmt::format("fault drill {}: rank {} is not running", drill.id, drill.rank.value()));
          return;
        }
        Send(node, SignalRank{d_.generation, drill.rank, drill.signal});
        Say(fmt::format("fault drill {}: signal {} to rank {} on {}", drill.id, drill.signal,
                        drill.rank.value(), node));
        return;
      }
      case ChaosRequest::Target::kAgent: {
        const auto node = d_.nodes.find(drill.node);
        if (node == d_.nodes.end() || !node->second.present) {
          Say(fmt::format("fault drill {}: node {} is not here", drill.id, drill.node));
          return;
        }
        Do(SignalAgent{drill.node, node->second.agent_pid, drill.signal});
        Say(fmt::format("fault drill {}: signal {} to the agent of {}", drill.id, drill.signal,
                        drill.node));
        return;
      }
      case ChaosRequest::Target::kSupervisor:
        Do(SignalSelf{drill.signal});
        Say(fmt::format("fault drill {}: signal {} to the supervisor", drill.id, drill.signal));
        return;
    }
  }
}

void Decider::On(const ClaimsSeen& e) {
  d_.highest_generation = std::max(d_.highest_generation, e.highest);
}

void Decider::On(const JobClosed&) {
  if (d_.phase == JobPhase::kDone) d_.closed = true;
}

void Decider::On(const Due& e) {
  d_.timers.erase(e.timer);
  switch (e.timer) {
    case Timer::kLaunch:
      TryLaunch();
      return;
    case Timer::kInquest:
      if (d_.phase == JobPhase::kJudging && d_.stalled.empty()) JudgeNow();
      return;
    case Timer::kEvidence:
      if (d_.phase == JobPhase::kJudging) {
        d_.evidence_awaited.clear();
        d_.verdict_wanted = true;
      }
      return;
    case Timer::kStop: {
      if (d_.phase != JobPhase::kStopping) return;
      for (Placed& placed : d_.placed) {
        if (placed.gone) continue;
        placed.gone = true;
        if (const auto node = d_.nodes.find(placed.node); node != d_.nodes.end()) {
          node->second.busy_with = d_.generation;  // until it says otherwise
        }
        Isolate(placed.node, fmt::format("it did not end g{} in time", d_.generation.value()),
                true);
      }
      ProceedWhenGone();
      return;
    }
    case Timer::kLeave:
      if (d_.phase != JobPhase::kLeaving) return;
      d_.afterwards =
          Afterwards{true,
                     1,
                     fmt::format("the last checkpoint did not become durable within {:g} s",
                                 Seconds(policy_.preemption_grace)),
                     "perdure report",
                     {}};
      Say(d_.afterwards.sentence);
      StopCurrent(true, policy_.stop_grace, d_.afterwards.sentence);
      ProceedWhenGone();
      return;
    case Timer::kReturn: {
      std::optional<Duration> next;
      for (auto& [name, node] : d_.nodes) {
        if (!node.isolated_until) continue;
        if (*node.isolated_until <= t_) {
          node.isolated_until.reset();
          node.isolation_certain = false;
          node.isolation_reason.clear();
          Say(fmt::format("node {} has cooled down and may be used again", name));
        } else if (!next || *node.isolated_until < *next) {
          next = node.isolated_until;
        }
      }
      if (next) SetTimer(Timer::kReturn, *next);
      TryLaunch();
      return;
    }
  }
}

void Decider::On(const NodesLost& e) {
  std::vector<std::string> holders;
  std::vector<std::string> spares;
  for (const std::string& name : e.nodes) {
    const auto found = d_.nodes.find(name);
    if (found == d_.nodes.end() || !found->second.present) continue;
    found->second.present = false;
    Placed* placed = active() ? PlacedOn(name) : nullptr;
    if (placed == nullptr || placed->gone) {
      spares.push_back(name);
      continue;
    }
    placed->gone = true;  // written off: it is fenced when it comes back
    const bool unfinished = !AllEnded(*placed);
    if (unfinished) holders.push_back(name);
  }
  if (!spares.empty()) {
    Say(fmt::format("{} {} gone (silent for {:.0f} s); no ranks were there",
                    fmt::join(spares, ", "), spares.size() == 1 ? "is" : "are", e.silent_seconds));
  }
  if (holders.empty()) {
    ProceedWhenGone();
    return;
  }
  if (at_work()) {
    Cause cause;
    cause.node = holders.front();
    if (const Placed* placed = PlacedOn(cause.node)) cause.rank = placed->first_rank;
    cause.node_lost = true;
    cause.last_progress =
        t_ - std::chrono::duration_cast<Duration>(std::chrono::duration<double>(e.silent_seconds));
    cause.last_progress = std::max(cause.last_progress, record().decided);
    // Before the patience with silence is over, a node is lost only when all of it has hung up.
    const bool one = holders.size() == 1;
    const bool hung_up = std::chrono::duration<double>(e.silent_seconds) < policy_.node_silent;
    const std::string evidence =
        hung_up
            ? (one ? "its agent and ranks have hung up" : "their agents and ranks have hung up")
            : fmt::format("{} silent for {:.0f} s",
                          one ? "its agent has been" : "their agents have been", e.silent_seconds);
    cause.head = one ? fmt::format("node {} is lost: {}", cause.node, evidence)
                     : fmt::format("{} nodes are lost ({}): {}", holders.size(),
                                   fmt::join(holders, ", "), evidence);
    for (std::size_t i = 1; i < holders.size(); ++i) BlameNode(holders[i], false);
    Decide(cause);
    return;
  }
  Say(fmt::format("{} written off: silent for {:.0f} s", fmt::join(holders, ", "),
                  e.silent_seconds));
  if (d_.phase == JobPhase::kLeaving) FinishLeaving();
  ProceedWhenGone();
}

void Decider::On(const Suspected& e) {
  if (IsCurrent(e.generation)) Say(e.sentence);
}

void Decider::On(const Stalled& e) {
  if (!IsCurrent(e.generation) || d_.phase != JobPhase::kRunning) return;
  BeginJudging(policy_.inquest);
  AskForEvidence(e.sentence);
  Say(e.sentence + "; collecting evidence");
}

void Decider::On(const Verdict& e) {
  if (!IsCurrent(e.generation) || d_.phase != JobPhase::kJudging) return;
  Cause cause;
  if (!e.rank && d_.suspected_cause) {
    cause = *d_.suspected_cause;
    if (!e.sentence.empty()) cause.head += fmt::format(" ({})", e.sentence);
  } else {
    cause.rank = e.rank;
    cause.node = e.node;
    cause.failure_class = e.failure_class;
    cause.head = e.sentence;
  }
  cause.blames_node = e.rank.has_value() && e.failure_class == FailureClass::kInfrastructure;
  cause.last_progress = std::max(e.last_progress, record().decided);
  Decide(cause);
}

void Decider::On(const Progress& e) {
  if (!IsCurrent(e.generation)) return;
  GenerationRecord& r = record();
  if (!r.opened) r.opened = e.opened;
  r.restoring = r.restoring || e.restoring;
  if (!r.first_step) r.first_step = e.first_step;
  if (e.completed >= r.completed) {
    r.completed = e.completed;
    if (e.last_completed) r.last_completed = e.last_completed;
    r.spent = e.spent;
    r.samples = std::max(r.samples, e.samples);
    if (e.loss) r.loss = e.loss;
  }
  r.median_step_seconds = e.median_step_seconds;
}

}  // namespace perdure::core
