// From waiting to a running generation, and from a stopped one onwards.
//
// Same ranks stay on same nodes; a lost or isolated node's place is taken by a spare. A generation
// starts only when the processes of the one before are gone or their node is written off (SUP-1),
// and never on an isolated node (SUP-4).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "supervisor/core/decider.h"

namespace perdure::core {
namespace {

// For the user's own code (MASTER_PORT): below the kernel's ephemeral range, another one for each
// generation, so that a socket in TIME_WAIT does not meet the next.
int MasterPort(const std::string& job, Generation generation) {
  const std::size_t mixed =
      std::hash<std::string>()(job) + 7919u * static_cast<std::size_t>(generation.value());
  return 20000 + static_cast<int>(mixed % 10000);
}

}  // namespace

void Decider::TryLaunch() {
  if (d_.phase != JobPhase::kWaiting) return;
  if (t_ < d_.afterwards.not_before) {
    SetTimer(Timer::kLaunch, d_.afterwards.not_before);
    return;
  }
  // A supervisor that is back first hears which of the nodes it knows are still there.
  const Duration heard_by = d_.term_started + policy_.agents_awaited;
  if (d_.term > 1 && t_ < heard_by) {
    for (const auto& [name, node] : d_.nodes) {
      if (node.present && node.term_seen < d_.term) {
        SetTimer(Timer::kLaunch, heard_by);
        return;
      }
    }
  }
  const std::vector<std::string> chosen = ChooseNodes();
  const int missing = static_cast<int>(std::count(chosen.begin(), chosen.end(), std::string()));
  if (missing > 0) {
    d_.enough_nodes_since.reset();
    if (LetIsolatedReturn(missing)) {
      TryLaunch();
      return;
    }
    if (d_.waiting_for != missing) {
      d_.waiting_for = missing;
      if (!d_.generations.empty()) {
        Say(fmt::format("waiting for {} more node{}", missing, missing == 1 ? "" : "s"));
      }
    }
    return;
  }
  if (d_.generations.empty()) {
    // The first launch gives slower agents a moment, so that names decide who is a spare.
    int usable = 0;
    for (const auto& [name, node] : d_.nodes) usable += node.usable() ? 1 : 0;
    if (usable < policy_.nodes + policy_.spares) {
      if (!d_.enough_nodes_since) d_.enough_nodes_since = t_;
      const Duration until = *d_.enough_nodes_since + policy_.spares_awaited;
      if (t_ < until) {
        SetTimer(Timer::kLaunch, until);
        return;
      }
    }
  }
  StartGeneration(chosen);
}

// One node per group rank; empty where there is none.
std::vector<std::string> Decider::ChooseNodes() {
  const auto fits = [&](const std::string& name) {
    const auto found = d_.nodes.find(name);
    return found != d_.nodes.end() && found->second.usable() &&
           found->second.capacity >= policy_.ranks_per_node;
  };
  std::vector<std::string> chosen(static_cast<std::size_t>(policy_.nodes));
  std::set<std::string> taken;
  for (std::size_t i = 0; i < chosen.size() && i < d_.assigned.size(); ++i) {
    if (fits(d_.assigned[i]) && taken.insert(d_.assigned[i]).second) chosen[i] = d_.assigned[i];
  }
  auto spare = d_.nodes.begin();
  for (std::string& place : chosen) {
    if (!place.empty()) continue;
    while (spare != d_.nodes.end() && (taken.count(spare->first) != 0 || !fits(spare->first))) {
      ++spare;
    }
    if (spare == d_.nodes.end()) break;
    place = spare->first;
    taken.insert(place);
  }
  return chosen;
}

// Isolation is for the benefit of the job: when the job would stand still without them, nodes come
// back before they have cooled down, the one nearest to its time first. Not those whose fault is
// certain.
bool Decider::LetIsolatedReturn(int missing) {
  std::vector<Node*> candidates;
  for (auto& [name, node] : d_.nodes) {
    if (node.present && node.isolated_until && !node.isolation_certain &&
        node.busy_with.value() == 0 && node.capacity >= policy_.ranks_per_node) {
      candidates.push_back(&node);
    }
  }
  if (static_cast<int>(candidates.size()) < missing) return false;
  std::sort(candidates.begin(), candidates.end(),
            [](const Node* a, const Node* b) { return *a->isolated_until < *b->isolated_until; });
  for (int i = 0; i < missing; ++i) {
    candidates[static_cast<std::size_t>(i)]->isolated_until.reset();
    Say(fmt::format("node {} returns early: without it the job would stand still",
                    candidates[static_cast<std::size_t>(i)]->name));
  }
  return true;
}

void Decider::StartGeneration(const std::vector<std::string>& chosen) {
  const bool first = d_.generations.empty();
  GenerationRecord started;
  started.number = d_.highest_generation.Next();
  started.waited_from = first ? d_.begun : d_.generations.back().ended.value_or(t_);
  started.decided = t_;
  started.restore.mode = d_.commits.empty() ? policy_.resume : ResumeMode::kRequire;
  started.restore.avoid = d_.avoid;
  started.restore.reason =
      d_.interruptions.empty() ? "first launch" : d_.interruptions.back().reason;

  std::string moved;
  for (std::size_t i = 0; i < chosen.size() && i < d_.assigned.size(); ++i) {
    if (chosen[i] != d_.assigned[i]) {
      moved += fmt::format("; {} takes the place of {}", chosen[i], d_.assigned[i]);
    }
  }
  d_.highest_generation = started.number;
  d_.generation = started.number;
  d_.assigned = chosen;
  d_.generations.push_back(std::move(started));
  d_.phase = JobPhase::kRunning;
  d_.waiting_for = 0;
  d_.placed.clear();
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    d_.placed.push_back({chosen[i], Rank(static_cast<std::int64_t>(i) * policy_.ranks_per_node),
                         policy_.ranks_per_node, false});
  }
  d_.ends.clear();
  d_.left.clear();
  d_.left_durable.clear();
  d_.store_address.clear();
  d_.suspected_cause.reset();
  d_.suspected_cause_is_consequence = false;
  d_.accusations.clear();
  d_.evidence_awaited.clear();
  d_.verdict_wanted = false;
  d_.stalled.clear();
  d_.judging_since.reset();
  d_.instant_witnesses.clear();
  d_.afterwards = Afterwards();
  ClearTimers();
  for (const Placed& placed : d_.placed) Send(placed.node, StartCommand(placed));

  std::vector<std::string> spares;
  for (const auto& [name, node] : d_.nodes) {
    if (node.usable() && PlacedOn(name) == nullptr) spares.push_back(name);
  }
  Say(fmt::format("starting generation {}: {} ranks on {}{}{}", d_.generation.value(),
                  policy_.world_size(), fmt::join(chosen, ", "), moved,
                  spares.empty() ? "" : fmt::format("; spare {}", fmt::join(spares, ", "))));
}

// What the present generation may know of the ones before it.
JobPast Decider::Past() const {
  JobPast past;
  past.interruptions = static_cast<std::int64_t>(d_.interruptions.size());
  for (const GenerationRecord& record : d_.generations) {
    if (record.ended) past.up += *record.ended - record.decided;
  }
  return past;
}

StartRanks Decider::StartCommand(const Placed& placed) const {
  StartRanks command;
  const GenerationRecord& current = d_.generations.back();
  command.generation = current.number;
  command.world_size = policy_.world_size();
  command.group_rank = static_cast<int>(placed.first_rank.value() / policy_.ranks_per_node);
  command.local_world_size = placed.count;
  const auto master = d_.nodes.find(d_.placed.front().node);
  command.master_addr = master == d_.nodes.end() ? "127.0.0.1" : master->second.address;
  command.master_port = MasterPort(policy_.job, current.number);
  command.restart_count = static_cast<int>(d_.generations.size()) - 1;
  command.command = policy_.command;
  command.env = policy_.env;
  command.working_directory = policy_.working_directory;
  command.stop_grace = policy_.stop_grace;
  command.welcome.restore = current.restore;
  command.welcome.checkpoint = policy_.checkpoint_settings;
  command.welcome.past = Past();
  command.welcome.init_deadline = policy_.init;
  command.welcome.restore_deadline = policy_.restore;
  command.welcome.collective_deadline = policy_.collective;
  command.welcome.not_joined_deadline = policy_.step_given.value_or(policy_.step_ceiling);
  command.welcome.checkpoint_deadline = policy_.checkpoint;
  command.welcome.preemption_grace = policy_.preemption_grace;
  for (int i = 0; i < placed.count; ++i) {
    command.ranks.push_back({Rank(placed.first_rank.value() + i), i});
  }
  return command;
}

// An agent said hello: its list of running processes is the truth about processes, the durable
// state is the truth about decisions. Whatever of a decision may not have reached this agent is
// sent again; all of it is idempotent.
void Decider::Reconcile(const AgentHello& hello, bool replaced) {
  Placed* placed = active() ? PlacedOn(hello.node) : nullptr;
  const bool wanted = placed != nullptr && !placed->gone;
  Node& node = d_.nodes[hello.node];
  node.busy_with = Generation();
  bool runs_current = false;
  for (const RunningRank& running : hello.running) {
    if (wanted && running.generation == d_.generation) {
      runs_current = true;
    } else {
      node.busy_with = std::max(node.busy_with, running.generation);
    }
  }
  if (node.busy_with.value() != 0) {
    d_.highest_generation = std::max(d_.highest_generation, node.busy_with);
    const std::string reason =
        fmt::format("generation {} is fenced: it was written off", node.busy_with.value());
    Send(hello.node, FenceGeneration{node.busy_with, reason});
    Send(hello.node, StopGeneration{node.busy_with, true, reason, policy_.stop_grace});
    Say(fmt::format("node {} still runs ranks of g{}: fenced", hello.node, node.busy_with.value()));
  }
  if (!wanted) return;
  if (replaced && !runs_current) {
    // The ranks of an agent end with it.
    placed->gone = true;
    if (at_work() && !AllEnded(*placed)) {
      Cause cause;
      cause.rank = placed->first_rank;
      cause.node = hello.node;
      cause.node_lost = true;
      cause.last_progress = t_;
      cause.head =
          fmt::format("the agent of node {} was replaced; its ranks ended with it", hello.node);
      Decide(cause);
    } else {
      if (d_.phase == JobPhase::kLeaving) FinishLeaving();
      ProceedWhenGone();
    }
    return;
  }
  switch (d_.phase) {
    case JobPhase::kRunning:
    case JobPhase::kJudging:
      Send(hello.node, StartCommand(*placed));
      if (!d_.store_address.empty()) {
        Send(hello.node, ToRanks{d_.generation, StoreAddress{d_.store_address}});
      }
      if (d_.evidence_awaited.count(hello.node) != 0) {
        Send(hello.node, CollectEvidence{d_.generation, policy_.evidence, d_.stalled});
      }
      return;
    case JobPhase::kStopping: {
      const bool preempted = d_.reason && !d_.afterwards.finish &&
                             d_.reason->failure_class == FailureClass::kPreemption;
      Send(hello.node, StopGeneration{d_.generation, !preempted,
                                      d_.reason ? d_.reason->head : d_.afterwards.sentence,
                                      preempted ? policy_.preemption_grace : policy_.stop_grace});
      return;
    }
    case JobPhase::kLeaving:
      Send(hello.node, StopGeneration{d_.generation, false, d_.stop ? d_.stop->reason : "stop",
                                      policy_.preemption_grace});
      return;
    case JobPhase::kWaiting:
    case JobPhase::kDone:
      return;
  }
}

void Decider::ProceedWhenGone() {
  if (d_.phase != JobPhase::kStopping) return;
  for (const Placed& placed : d_.placed) {
    if (!placed.gone) return;
  }
  record().ended = t_;
  if (d_.afterwards.finish) {
    Finish(d_.afterwards.exit_code, d_.afterwards.sentence, d_.afterwards.next_command);
    return;
  }
  d_.phase = JobPhase::kWaiting;
  ClearTimers();
  TryLaunch();
}

// The coordinated checkpoint is taken and everybody has left, or there is nobody to wait for.
void Decider::FinishLeaving() {
  if (d_.phase != JobPhase::kLeaving) return;
  for (const Placed& placed : d_.placed) {
    if (!placed.gone) return;
  }
  bool durable = static_cast<int>(d_.ends.size()) == policy_.world_size();
  bool done = durable;
  for (const auto& [rank, end] : d_.ends) {
    durable = durable && end.durable && (end.said == Code::kOk || end.said == Code::kPreempted);
    done = done && end.exit_code && *end.exit_code == 0;
  }
  record().ended = t_;
  const int signal = d_.stop ? d_.stop->signal : 0;
  if (done) {
    Finish(0, "all ranks were done", "");
  } else if (durable) {
    Finish(signal != 0 ? 128 + signal : 0,
           fmt::format("stopped{}; everything is durable{}",
                       signal != 0 ? fmt::format(" by signal {}", signal) : std::string(),
                       d_.commits.empty()
                           ? std::string()
                           : fmt::format(", up to step {}", d_.commits.back().step.value())),
           "");
  } else {
    Finish(1, fmt::format("stopped, but the last steps are not durable; {}", ResumeText()),
           "perdure report");
  }
}

void Decider::Finish(int exit_code, const std::string& sentence, const std::string& next_command) {
  d_.phase = JobPhase::kDone;
  d_.exit_code = exit_code;
  if (!d_.finished) d_.finished = t_;
  d_.afterwards = Afterwards{true, exit_code, sentence, next_command, {}};
  d_.timers.clear();
  for (const auto& [name, node] : d_.nodes) {
    if (node.present) Send(name, Shutdown{sentence});
  }
  Do(FinishJob{exit_code, sentence, next_command});
  Say(fmt::format("the job ends with exit code {}: {}{}", exit_code, sentence,
                  next_command.empty() ? "" : fmt::format("; next: {}", next_command)));
}

}  // namespace perdure::core
