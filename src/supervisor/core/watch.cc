// Watching: from what is seen to what follows from it.
//
// Nothing here has an effect. Reports update what is seen; each Tick compares it with the deadlines
// and raises derived events, which are journalled and then decided upon like any other:
//   1 timers of the durable state that have come            -> Due
//   2 nodes not heard for too long                          -> NodesLost, all in one event
//   3 ranks silent while their process lives                -> Suspected
//   4 ranks that overstay the deadline of their phase       -> Stalled
//   5 evidence is complete and a verdict is wanted          -> Verdict
//   6 drills that have come to their step                   -> DrillDue
// Deadlines run on awake time: a supervisor that slept discounts its own sleep.
#include <fmt/format.h>

#include <algorithm>

#include "analysis/diagnosis.h"
#include "supervisor/core/decider.h"

namespace perdure::core {
namespace {

constexpr std::size_t kStepSamplesKept = 32;
constexpr Duration kProgressNotedEvery = std::chrono::seconds(60);
constexpr Duration kTickEvery = std::chrono::milliseconds(200);

bool IsStepPhase(Phase phase) {
  return phase == Phase::kData || phase == Phase::kCompute || phase == Phase::kComm ||
         phase == Phase::kUpdate;
}

void Accumulate(TimeSpent& sum, const TimeSpent& part, double sign) {
  sum.compute += sign * part.compute;
  sum.communication += sign * part.communication;
  sum.data += sign * part.data;
  sum.checkpoint += sign * part.checkpoint;
  sum.init += sign * part.init;
  sum.restore += sign * part.restore;
  sum.eval += sign * part.eval;
  sum.other += sign * part.other;
}

TimeSpent Mean(const TimeSpent& sum, std::int64_t count) {
  TimeSpent mean;
  if (count > 0) Accumulate(mean, sum, 1.0 / static_cast<double>(count));
  return mean;
}

double Median(std::deque<double> samples) {
  if (samples.empty()) return 0;
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

Duration FromSeconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

bool AtWork(const Durable& d) {
  return d.phase == JobPhase::kRunning || d.phase == JobPhase::kJudging;
}

class Watcher {
 public:
  Watcher(const Policy& policy, State& state, const Event& event, Decision& decision)
      : policy_(policy), d_(state.durable), s_(state.seen), event_(event), decision_(decision) {}

  void OnReport(const NodeReport& report) {
    Hear(report.node);
    for (const RankObservation& observation : report.ranks) Observe(observation);
  }

  void OnTick(const Tick& tick) {
    NoteProgress(tick.note_progress);
    for (const auto& [timer, at] : d_.timers) {
      if (event_.t >= at) Raise(Due{timer});
    }
    LoseSilentNodes();
    if (AtWork(d_)) {
      if (d_.phase == JobPhase::kRunning) FindStalls();
      if (d_.phase == JobPhase::kJudging && d_.verdict_wanted) Raise(MakeVerdict());
    }
    for (const Drill& drill : d_.drills) {
      if (!drill.done && drill.at_step && AtWork(d_) && s_.generation == d_.generation &&
          s_.completed >= *drill.at_step) {
        Raise(DrillDue{drill.id});
      }
    }
  }

 private:
  void Raise(EventBody body) {
    Event event;
    event.t = event_.t;
    event.body = std::move(body);
    decision_.raise.push_back(std::move(event));
  }

  void Hear(const std::string& node) {
    NodeSeen& seen = s_.nodes[node];
    seen.connected = true;
    seen.heard = s_.awake();
  }

  void Observe(const RankObservation& observation) {
    if (!AtWork(d_) || observation.generation != d_.generation) return;
    const auto index = static_cast<std::size_t>(observation.rank.value());
    if (observation.rank.value() < 0 || index >= s_.ranks.size()) return;
    RankSeen& rank = s_.ranks[index];
    const Duration awake = s_.awake();
    rank.observation = observation;
    rank.observation->report.reset();
    if (!observation.report) return;
    const RankReport& report = *observation.report;
    rank.spoke = std::max(rank.spoke, awake - observation.report_age);
    rank.suspected = rank.suspected && awake - rank.spoke > policy_.suspected;
    Follow(rank, report);
    rank.report = report;
  }

  // What is new in a rank's report?
  void Follow(RankSeen& rank, const RankReport& report) {
    const Duration awake = s_.awake();
    bool progress = true;
    if (rank.report) {
      const RankReport& last = *rank.report;
      const bool same_step =
          report.step == last.step && report.completed_step == last.completed_step;
      const bool both_in_step = IsStepPhase(report.phase) && IsStepPhase(last.phase) &&
                                !report.phase_deadline && !last.phase_deadline;
      const bool same_phase = report.phase == last.phase && report.phase_name == last.phase_name;
      // Within a step the whole step has one deadline; elsewhere each phase has its own.
      progress = !same_step || !(both_in_step || same_phase);
      Accumulate(s_.spent_sum, last.time_spent, -1);
    } else {
      ++s_.reporting;
    }
    Accumulate(s_.spent_sum, report.time_spent, 1);
    if (progress) {
      rank.progress = awake;
      rank.progress_t = s_.t;
    }
    if (report.completed_step.value() >= 0 &&
        (!rank.report || report.completed_step > rank.report->completed_step)) {
      rank.steps_done += rank.report && rank.report->completed_step.value() >= 0
                             ? report.completed_step.value() - rank.report->completed_step.value()
                             : 1;
    }
    s_.restoring = s_.restoring || report.phase == Phase::kRestore;
    s_.samples = std::max(s_.samples, report.samples);
    if (!s_.opened) s_.opened = s_.t;
    if (report.completed_step > s_.completed) {
      if (s_.completed.value() >= 0) {
        const auto steps = report.completed_step.value() - s_.completed.value();
        const double took = Seconds(awake - s_.last_completed_awake) / static_cast<double>(steps);
        if (took > 0) s_.step_seconds.push_back(took);
        if (s_.step_seconds.size() > kStepSamplesKept) s_.step_seconds.pop_front();
      } else {
        s_.first_step = s_.t;
      }
      s_.completed = report.completed_step;
      s_.last_completed = s_.t;
      s_.last_completed_awake = awake;
      if (report.loss) s_.loss = report.loss;
    }
    // Before the first step: as of now; then as of the last completed step.
    if (s_.completed.value() < 0 || s_.last_completed == s_.t) {
      s_.spent = Mean(s_.spent_sum, s_.reporting);
    }
  }

  void NoteProgress(bool now) {
    if (!AtWork(d_) || s_.generation != d_.generation || !s_.opened) return;
    Progress progress;
    progress.generation = d_.generation;
    progress.restoring = s_.restoring;
    progress.completed = s_.completed;
    progress.opened = s_.opened;
    progress.first_step = s_.first_step;
    progress.last_completed = s_.last_completed;
    progress.spent = s_.spent;
    progress.median_step_seconds = Median(s_.step_seconds);
    progress.samples = s_.samples;
    progress.loss = s_.loss;
    const bool milestone =
        progress.opened != s_.noted.opened || progress.first_step != s_.noted.first_step ||
        progress.restoring != s_.noted.restoring || s_.noted.generation != d_.generation;
    if (!milestone && !now && s_.t - s_.noted_at < kProgressNotedEvery) return;
    if (progress == s_.noted) return;
    s_.noted = progress;
    s_.noted_at = s_.t;
    Raise(std::move(progress));
  }

  Duration HeardOf(const Node& node) const {
    const auto seen = s_.nodes.find(node.name);
    if (seen != s_.nodes.end()) return seen->second.heard;
    // Not since this supervisor started: awaited a while longer.
    return d_.term_started + policy_.agents_awaited - policy_.node_silent;
  }

  bool Connected(const std::string& node) const {
    const auto seen = s_.nodes.find(node);
    return seen != s_.nodes.end() && seen->second.connected;
  }

  // A rank that failed says that a peer on this node is dead.
  bool Accused(const std::string& node) const {
    for (const Accusation& accusation : d_.accusations) {
      if (accusation.failure_class != CommFailure::Class::kPeerDead) continue;
      for (const Rank suspect : accusation.suspects) {
        if (NodeOf(d_, suspect) == node && NodeOf(d_, accusation.by) != node) return true;
      }
    }
    return false;
  }

  bool Placed(const std::string& node) const {
    if (!AtWork(d_) && d_.phase != JobPhase::kStopping && d_.phase != JobPhase::kLeaving) {
      return false;
    }
    for (const auto& placed : d_.placed) {
      if (placed.node == node && !placed.gone) return true;
    }
    return false;
  }

  void LoseSilentNodes() {
    const Duration awake = s_.awake();
    std::vector<std::string> lost;
    std::vector<std::string> nearly;
    Duration longest{};
    int present = 0;
    for (const auto& [name, node] : d_.nodes) {
      if (!node.present) continue;
      ++present;
      const Duration silent = awake - HeardOf(node);
      // Steps are done together: while others complete steps, the ranks of this node are alive and
      // it is only the way to their agent that is broken (or the agent). It costs nothing to wait.
      const bool seen_alive =
          Placed(name) && AtWork(d_) &&
          s_.last_completed_awake > HeardOf(node) + 2 * policy_.agent_report_interval &&
          awake - s_.last_completed_awake < policy_.node_silent;
      const bool gone = !Connected(name) && s_.nodes.count(name) != 0 && Accused(name);
      if (!seen_alive && (silent >= policy_.node_silent || gone)) {
        lost.push_back(name);
        longest = std::max(longest, silent);
      } else if (!seen_alive && !Connected(name) && s_.nodes.count(name) != 0 &&
                 silent >= policy_.node_silent / 2) {
        nearly.push_back(name);
      }
    }
    if (lost.empty()) return;
    // What dies together is one event.
    lost.insert(lost.end(), nearly.begin(), nearly.end());
    // Most of them at once: it may be this machine's own network. Hold for twice as long.
    if (present > 1 && lost.size() * 2 > static_cast<std::size_t>(present) &&
        longest < 2 * policy_.node_silent) {
      return;
    }
    std::sort(lost.begin(), lost.end());
    Raise(NodesLost{lost, Seconds(longest)});
  }

  Duration ProgressOf(const RankSeen& rank) const { return std::max(rank.progress, s_.since); }

  Duration DeadlineOf(const RankSeen& rank) const {
    if (!rank.report) return policy_.init;
    const RankReport& report = *rank.report;
    if (report.phase_deadline) return *report.phase_deadline;
    switch (report.phase) {
      case Phase::kInit:
        return policy_.init;
      case Phase::kRestore:
        return policy_.restore;
      case Phase::kCheckpoint:
        return policy_.checkpoint;
      case Phase::kEval:
      case Phase::kIdle:
        return policy_.other_phase;
      case Phase::kData:
      case Phase::kCompute:
      case Phase::kComm:
      case Phase::kUpdate:
        break;
    }
    if (rank.steps_done < policy_.warm_steps) return std::max(policy_.init, StepDeadline());
    return StepDeadline();
  }

  Duration StepDeadline() const {
    if (policy_.step_given) return *policy_.step_given;
    double median = Median(s_.step_seconds);
    if (median == 0 && !d_.generations.empty()) {
      median = d_.generations.back().median_step_seconds;
    }
    return std::min(std::max(FromSeconds(policy_.step_factor * median), policy_.step_floor),
                    policy_.step_ceiling);
  }

  // Everything that is known of the ranks whose processes should be alive.
  std::vector<RankFacts> Facts() const {
    std::vector<RankFacts> facts;
    const Duration awake = s_.awake();
    for (std::size_t i = 0; i < s_.ranks.size(); ++i) {
      const Rank number(static_cast<std::int64_t>(i));
      if (d_.ends.count(number) != 0) continue;
      const RankSeen& rank = s_.ranks[i];
      RankFacts fact;
      fact.rank = number;
      fact.node = NodeOf(d_, number);
      fact.standing_seconds = Seconds(awake - ProgressOf(rank));
      fact.deadline_seconds = Seconds(DeadlineOf(rank));
      if (rank.observation) fact.process = rank.observation->process;
      if (rank.report) {
        fact.reported = true;
        fact.phase = rank.report->phase;
        fact.phase_name = rank.report->phase_name;
        fact.step = rank.report->step;
        fact.completed = rank.report->completed_step;
        fact.communicators = rank.report->communicators;
        fact.silent_seconds = Seconds(awake - rank.spoke);
      }
      facts.push_back(std::move(fact));
    }
    return facts;
  }

  bool NodeHeard(Rank rank) const {
    const auto node = s_.nodes.find(NodeOf(d_, rank));
    return node != s_.nodes.end() && s_.awake() - node->second.heard < policy_.node_silent / 2;
  }

  void Suspect(std::size_t index) {
    RankSeen& rank = s_.ranks[index];
    const Duration silent = s_.awake() - rank.spoke;
    if (rank.suspected || !rank.report || silent <= policy_.suspected || !rank.observation) return;
    rank.suspected = true;
    const Rank number(static_cast<std::int64_t>(index));
    const char* process = rank.observation->process == ProcessState::kStopped ? "is stopped"
                          : rank.observation->process == ProcessState::kUninterruptible
                              ? "is in uninterruptible sleep"
                              : "lives";
    Raise(Suspected{d_.generation, number,
                    fmt::format("rank {} on {} is suspected: silent for {:.0f} s > {:g} s, its "
                                "process {}",
                                index, NodeOf(d_, number), Seconds(silent),
                                Seconds(policy_.suspected), process)});
  }

  void FindStalls() {
    if (s_.generation != d_.generation) return;
    const RankSeen* first = nullptr;
    std::size_t first_index = 0;
    bool all_wait = true;         // all that are overdue wait in a collective
    bool others_may_yet = false;  // somebody else is busy within its deadline
    for (std::size_t i = 0; i < s_.ranks.size(); ++i) {
      const Rank number(static_cast<std::int64_t>(i));
      if (d_.ends.count(number) != 0 || !NodeHeard(number)) continue;
      Suspect(i);
      const RankSeen& rank = s_.ranks[i];
      const bool waits = rank.report && rank.report->phase == Phase::kComm;
      const bool overdue = s_.awake() - ProgressOf(rank) > DeadlineOf(rank);
      if (!overdue) {
        others_may_yet = others_may_yet || !waits;
        continue;
      }
      all_wait = all_wait && waits;
      const bool first_waits =
          first != nullptr && first->report && first->report->phase == Phase::kComm;
      if (first == nullptr || (first_waits && !waits)) {
        first = &rank;
        first_index = i;
      }
    }
    if (first == nullptr) return;
    // COMM-4: who waits for a rank that is busy within its own deadline is not hung.
    if (all_wait && others_may_yet) return;
    const Rank number(static_cast<std::int64_t>(first_index));
    std::string doing = "has not reported";
    if (first->report) {
      const RankReport& report = *first->report;
      const std::string phase = report.phase_name.empty()
                                    ? std::string(perdure::NameOf(report.phase))
                                    : report.phase_name;
      doing = report.step.value() < 0
                  ? fmt::format("is in phase {}", phase)
                  : fmt::format("is at step {} in phase {}", report.step.value(), phase);
    }
    Raise(Stalled{d_.generation, number,
                  fmt::format("no progress: rank {} on {} {} for {:.1f} s > {:g} s", first_index,
                              NodeOf(d_, number), doing, Seconds(s_.awake() - ProgressOf(*first)),
                              Seconds(DeadlineOf(*first)))});
  }

  Verdict MakeVerdict() const {
    std::vector<Suspicion> suspicions;
    bool mismatch = false;
    for (const Accusation& accusation : d_.accusations) {
      suspicions.push_back({accusation.by, accusation.suspects, accusation.message});
      mismatch = mismatch || accusation.failure_class == CommFailure::Class::kMismatch;
    }
    Verdict verdict;
    verdict.generation = d_.generation;
    // A rank that already ended as a consequence, and everybody's suspect that is gone, are judged
    // by what was said about them.
    const Diagnosis diagnosis = Diagnose(Facts(), suspicions);
    verdict.rank = diagnosis.culprit;
    verdict.node = diagnosis.node;
    verdict.sentence = diagnosis.sentence;
    verdict.failure_class = mismatch ? FailureClass::kUserCode : FailureClass::kInfrastructure;
    verdict.last_progress = s_.t;
    if (diagnosis.culprit) {
      const RankSeen& rank = s_.ranks[static_cast<std::size_t>(diagnosis.culprit->value())];
      verdict.last_progress = rank.progress_t;
    } else if (s_.last_completed) {
      verdict.last_progress = *s_.last_completed;
    }
    return verdict;
  }

  const Policy& policy_;
  const Durable& d_;
  Seen& s_;
  const Event& event_;
  Decision& decision_;
};

// Keeps time: awake time stands still while the supervisor itself did not run.
void KeepTime(const Policy& policy, Seen& seen, Duration t) {
  if (!seen.begun) {
    seen.begun = true;
    seen.t = t;
    return;
  }
  const Duration gap = t - seen.t;
  if (gap > policy.pause_noticed) seen.paused += gap - kTickEvery;
  seen.t = std::max(seen.t, t);
}

// What was seen of an older generation is forgotten: every generation starts with clean phases.
void FollowGeneration(const Durable& durable, Seen& seen) {
  if (seen.generation == durable.generation && !seen.ranks.empty()) return;
  if (durable.placed.empty()) return;
  seen.generation = durable.generation;
  seen.since = seen.awake();
  std::size_t world = 0;
  for (const Placed& placed : durable.placed) world += static_cast<std::size_t>(placed.count);
  RankSeen unseen;
  unseen.spoke = seen.since;
  unseen.progress = seen.since;
  unseen.progress_t = seen.t;
  seen.ranks.assign(world, unseen);
  seen.step_seconds.clear();
  seen.opened.reset();
  seen.first_step.reset();
  seen.last_completed.reset();
  seen.last_completed_awake = Duration{};
  seen.completed = perdure::Step(-1);
  seen.restoring = false;
  seen.spent_sum = TimeSpent();
  seen.reporting = 0;
  seen.samples = 0;
  seen.loss.reset();
  seen.spent = TimeSpent();
}

}  // namespace

void See(const Policy& policy, State& state, const Event& event, Decision& decision) {
  KeepTime(policy, state.seen, event.t);
  FollowGeneration(state.durable, state.seen);
  Watcher watcher(policy, state, event, decision);
  if (const auto* report = std::get_if<NodeReport>(&event.body)) {
    watcher.OnReport(*report);
  } else if (std::holds_alternative<NodeDisconnected>(event.body)) {
    state.seen.nodes[event.node].connected = false;
  } else if (const auto* tick = std::get_if<Tick>(&event.body)) {
    watcher.OnTick(*tick);
  }
}

void Notice(const Policy& policy, State& state, const Event& event) {
  KeepTime(policy, state.seen, event.t);
  FollowGeneration(state.durable, state.seen);
  const auto* hello = std::get_if<AgentHello>(&event.body);
  const std::string& node = hello != nullptr ? hello->node : event.node;
  if (node.empty()) return;
  NodeSeen& seen = state.seen.nodes[node];
  seen.heard = state.seen.awake();
  seen.connected = true;
}

Duration NextTick(const Policy& policy, const State& state) {
  (void)policy;
  Duration next = state.seen.t + kTickEvery;
  for (const auto& [timer, at] : state.durable.timers) next = std::min(next, at);
  return std::max(next, state.seen.t);
}

}  // namespace perdure::core
