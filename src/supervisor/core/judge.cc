// What went wrong, what it costs, what comes next.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>

#include "supervisor/core/decider.h"

namespace perdure::core {
namespace {

constexpr int kLoadCrashesMost = 2;
constexpr std::size_t kPeersToldMost = 8;

// A signal that the program brings upon itself.
bool IsProgramsOwn(int signal) {
  return signal == SIGSEGV || signal == SIGABRT || signal == SIGFPE || signal == SIGILL ||
         signal == SIGTRAP;
}

FailureClass ClassOf(Code said) {
  switch (said) {
    case Code::kPreempted:
      return FailureClass::kPreemption;
    case Code::kUnavailable:
    case Code::kDeadlineExceeded:
    case Code::kResourceExhausted:
    case Code::kCommFailed:
    case Code::kDataLoss:
    case Code::kFenced:
      return FailureClass::kInfrastructure;
    default:
      return FailureClass::kUserCode;
  }
}

std::string FirstLine(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

std::string Minutes(Duration duration) {
  const double seconds = Seconds(duration);
  if (seconds < 60) return fmt::format("{:.0f} s", seconds);
  if (seconds < 3600) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.0f} h", seconds / 3600);
}

}  // namespace

std::string SignatureOf(const Cause& cause) {
  std::string signature = cause.signal ? fmt::format("signal {}", *cause.signal)
                                       : fmt::format("code {}", cause.exit_code.value_or(-1));
  // Ranks, pids, times and addresses differ between two instances of one error; words do not.
  signature += " ";
  for (const char c : cause.error_line) {
    if (c < '0' || c > '9') signature += c;
  }
  return signature;
}

Cause Decider::CauseOf(const RankExited& e) const {
  Cause cause;
  cause.rank = e.rank;
  cause.node = event_.node;
  cause.exit_code = e.exit_code;
  cause.signal = e.signal;
  cause.error_line = e.last_error_line;
  cause.last_progress = t_;
  const GenerationRecord& current = d_.generations.back();
  std::string said;
  Code code = Code::kOk;
  if (e.leaving) {
    code = e.leaving->code;
    said = e.leaving->message;
  } else if (const auto left = d_.left.find(e.rank); left != d_.left.end()) {
    code = left->second;
  }
  if (cause.error_line.empty()) cause.error_line = FirstLine(said);

  // A shell that ran the program reports its signal as 128 + n.
  int signal = e.signal.value_or(0);
  if (signal == 0 && code == Code::kOk && e.exit_code.value_or(0) > 128) {
    const int reported = *e.exit_code - 128;
    if (reported == SIGKILL || reported == SIGTERM) signal = reported;
  }
  const std::string where = fmt::format("rank {} on {}", e.rank.value(), event_.node);
  if (signal != 0) {
    cause.failure_class =
        IsProgramsOwn(signal) ? FailureClass::kUserCode : FailureClass::kInfrastructure;
    cause.head = fmt::format("{} was killed (signal {})", where, signal);
    if (IsProgramsOwn(signal) && !cause.error_line.empty()) cause.head += ": " + cause.error_line;
  } else if (e.exit_code.value_or(0) == 0) {
    cause.failure_class = FailureClass::kInfrastructure;
    cause.head = fmt::format("{} left with work that is not durable{}{}", where,
                             said.empty() ? "" : ": ", FirstLine(said));
  } else {
    cause.failure_class = ClassOf(code);
    const std::string text = said.empty() ? cause.error_line : FirstLine(said);
    cause.head = code == Code::kPreempted
                     ? fmt::format("{} was preempted", where)
                     : fmt::format("{} exited with code {}{}{}", where, *e.exit_code,
                                   text.empty() ? "" : ": ", text);
  }
  cause.blames_node = cause.failure_class == FailureClass::kInfrastructure;
  cause.instant = cause.failure_class != FailureClass::kPreemption &&
                  current.completed.value() < 0 && e.lifetime_seconds < Seconds(policy_.instant) &&
                  signal != SIGKILL;
  return cause;
}

void Decider::BeginJudging(Duration patience) {
  d_.phase = JobPhase::kJudging;
  d_.judging_since = t_;
  SetTimer(Timer::kInquest, t_ + patience);
}

void Decider::AskForEvidence(const std::string& reason) {
  d_.stalled = reason;
  d_.timers.erase(Timer::kInquest);
  SetTimer(Timer::kEvidence, t_ + policy_.evidence);
  for (const Placed& placed : d_.placed) {
    if (placed.gone) continue;
    d_.evidence_awaited.insert(placed.node);
    Send(placed.node, CollectEvidence{d_.generation, policy_.evidence, reason});
  }
}

// No better cause will turn up: what is known decides, else a comparison of the ranks.
void Decider::JudgeNow() {
  d_.phase = JobPhase::kJudging;
  if (d_.suspected_cause && !d_.suspected_cause_is_consequence) {
    const Cause cause = *d_.suspected_cause;
    Decide(cause);
    return;
  }
  d_.verdict_wanted = true;
}

void Decider::Decide(const Cause& cause) {
  GenerationRecord& r = record();
  r.last_progress = cause.last_progress;
  r.judged = t_;
  d_.reason = cause;
  switch (cause.failure_class) {
    case FailureClass::kUserCode:
      ++d_.user_failures;
      break;
    case FailureClass::kInfrastructure:
      ++d_.infrastructure_failures;
      break;
    case FailureClass::kPreemption:
      ++d_.preemptions;
      break;
  }
  // Refill: so long without an interruption gives the budget back.
  if (d_.last_interruption && t_ - *d_.last_interruption >= policy_.refill_after) {
    d_.restarts_used = 0;
  }
  d_.last_interruption = t_;
  Detail(fmt::format("class {}", NameOf(cause.failure_class)));

  const bool another_node_lost = cause.node_lost && d_.lost_in_streak.insert(cause.node).second;
  const bool counts = cause.failure_class != FailureClass::kPreemption && !another_node_lost;
  CountInstantFailure(cause);
  CountLoadCrash(cause);
  d_.afterwards = Weigh(cause, counts);
  if (d_.stop) {
    d_.afterwards.finish = true;
    d_.afterwards.exit_code = d_.stop->signal != 0 ? 128 + d_.stop->signal : 0;
  }
  if (cause.blames_node && !cause.node.empty() &&
      cause.failure_class == FailureClass::kInfrastructure) {
    BlameNode(cause.node, !d_.afterwards.finish);
  }

  std::string when;
  if (r.completed.value() >= 0) {
    when = fmt::format(" at step {}", r.completed.value() + 1);
  } else if (!cause.node_lost) {
    when = " before its first step";
  }
  // A verdict's sentence already says where the ranks stand.
  const bool placed_in_time = cause.head.find(" step ") != std::string::npos;
  const std::string happened = cause.head + (placed_in_time ? "" : when);

  Interruption interruption;
  interruption.generation = d_.generation;
  interruption.rank = cause.rank;
  interruption.node = cause.node;
  interruption.failure_class = cause.failure_class;
  interruption.reason = happened;
  interruption.exit_code = cause.exit_code;
  interruption.signal = cause.signal;
  interruption.error_line = cause.error_line;
  interruption.last_progress = cause.last_progress;
  interruption.judged = t_;
  interruption.completed = r.completed;
  d_.interruptions.push_back(std::move(interruption));

  if (d_.afterwards.finish) {
    Detail(fmt::format("stop g{}", d_.generation.value()));
    if (d_.afterwards.sentence.empty()) {
      d_.afterwards.sentence = happened;
    } else {
      d_.afterwards.sentence = fmt::format("{}; {}", happened, d_.afterwards.sentence);
    }
    Say(d_.afterwards.sentence);
  } else {
    const std::int64_t next = d_.highest_generation.value() + 1;
    const double delay = Seconds(std::max(d_.afterwards.not_before - t_, Duration::zero()));
    Detail(fmt::format("stop g{}, start g{} after {:g} s", d_.generation.value(), next, delay));
    Say(fmt::format("{}; restarting all ranks as generation {} {}", happened, next, ResumeText()));
  }

  if (cause.failure_class == FailureClass::kPreemption) {
    StopCurrent(false, policy_.preemption_grace, happened);
  } else {
    if (cause.rank) {
      // Their collectives fail at once, with the right name.
      std::vector<Rank> dead{*cause.rank};
      if (cause.node_lost) {
        for (const Placed& placed : d_.placed) {
          const auto node = d_.nodes.find(placed.node);
          if (placed.gone && node != d_.nodes.end() && !node->second.present &&
              placed.first_rank != *cause.rank && dead.size() < kPeersToldMost) {
            dead.push_back(placed.first_rank);
          }
        }
      }
      for (const Placed& placed : d_.placed) {
        if (placed.gone) continue;
        for (const Rank rank : dead) {
          Send(placed.node, ToRanks{d_.generation, PeerDead{rank, cause.head}});
        }
      }
    }
    StopCurrent(true, policy_.stop_grace, happened);
  }
  ProceedWhenGone();
}

// Budgets (SUP-3): what the job may still afford decides between restart and end.
Afterwards Decider::Weigh(const Cause& cause, bool counts_as_no_progress) {
  Afterwards next;
  next.not_before = t_;
  if (cause.failure_class == FailureClass::kPreemption) {
    Detail(fmt::format("preemption {}", d_.preemptions));
    return next;
  }
  const std::string logs = cause.rank ? fmt::format("perdure logs --rank {} --generation {}",
                                                    cause.rank->value(), d_.generation.value())
                                      : std::string("perdure report");
  const bool everywhere = d_.instant_nodes.size() > 1 || policy_.nodes == 1;
  if (d_.instant_repeats > 1 && everywhere) {
    next.finish = true;
    next.exit_code = 93;
    next.sentence = fmt::format(
        "the same instant failure {} times in a row on {}: another try "
        "would not help",
        d_.instant_repeats, fmt::join(d_.instant_nodes, ", "));
    next.next_command = logs;
    return next;
  }
  if (counts_as_no_progress && d_.no_progress_restarts >= policy_.max_no_progress_restarts) {
    next.finish = true;
    next.exit_code = 93;
    next.sentence = fmt::format(
        "{} restarts in a row without a newer committed checkpoint: "
        "stopped for good",
        d_.no_progress_restarts);
    next.next_command = logs;
    return next;
  }
  if (d_.restarts_used >= policy_.max_auto_restart) {
    next.finish = true;
    next.exit_code = 1;
    next.sentence = fmt::format("the restart budget is used up ({} of {})", d_.restarts_used,
                                policy_.max_auto_restart);
    next.next_command = logs;
    return next;
  }
  ++d_.restarts_used;
  ++d_.restarts_total;
  if (counts_as_no_progress) ++d_.no_progress_restarts;
  Duration delay{};
  if (d_.no_progress_restarts > 1) {
    delay = policy_.backoff_first;
    for (int i = 2; i < d_.no_progress_restarts && delay < policy_.backoff_most; ++i) delay *= 2;
    delay = std::min(delay, policy_.backoff_most);
  }
  next.not_before = t_ + delay;
  Detail(fmt::format("restart {} of {}", d_.restarts_used, policy_.max_auto_restart));
  return next;
}

void Decider::CountInstantFailure(const Cause& cause) {
  if (!cause.instant) {
    d_.instant_signature.clear();
    d_.instant_repeats = 0;
    d_.instant_nodes.clear();
    return;
  }
  const std::string signature = SignatureOf(cause);
  if (signature != d_.instant_signature) {
    d_.instant_signature = signature;
    d_.instant_repeats = 0;
    d_.instant_nodes.clear();
  }
  ++d_.instant_repeats;
  d_.instant_nodes.insert(cause.node);
  for (const std::string& node : d_.instant_witnesses[signature]) d_.instant_nodes.insert(node);
  if (d_.instant_repeats > 1 && d_.instant_nodes.size() == 1 && policy_.nodes > 1) {
    // Only ever here: the node, not the program.
    Isolate(cause.node,
            fmt::format("ranks failed at once there {} times in a row", d_.instant_repeats), false);
  }
}

void Decider::CountLoadCrash(const Cause& cause) {
  const GenerationRecord& r = record();
  if (cause.node_lost || cause.failure_class == FailureClass::kPreemption || !r.restoring ||
      r.restored) {
    return;
  }
  // The newest checkpoint that this generation was not told to avoid is the one it was loading.
  for (auto commit = d_.commits.rbegin(); commit != d_.commits.rend(); ++commit) {
    const std::string name = CheckpointName(commit->step, commit->generation);
    if (std::find(d_.avoid.begin(), d_.avoid.end(), name) != d_.avoid.end()) continue;
    if (++d_.load_crashes[name] >= kLoadCrashesMost) {
      d_.avoid.push_back(name);
      Detail(fmt::format("{} crashed its loaders {} times and is avoided from now on", name,
                         kLoadCrashesMost));
    }
    return;
  }
}

void Decider::BlameNode(const std::string& name, bool replaceable) {
  const auto found = d_.nodes.find(name);
  if (found == d_.nodes.end()) return;
  Node& node = found->second;
  node.blames.erase(std::remove_if(node.blames.begin(), node.blames.end(),
                                   [&](Duration at) { return t_ - at > policy_.blame_window; }),
                    node.blames.end());
  node.blames.push_back(t_);
  Detail(fmt::format("blame node {} ({} of {} in {})", name, node.blames.size(),
                     policy_.isolate_after, Minutes(policy_.blame_window)));
  if (!policy_.auto_isolate_bad_node || !replaceable) return;
  if (static_cast<int>(node.blames.size()) < policy_.isolate_after) return;
  Isolate(name,
          fmt::format("blamed {} times in {}", node.blames.size(), Minutes(policy_.blame_window)),
          false);
}

// A node is set aside for a while, twice as long each time. Not when the job could not go on
// without it, unless its fault is certain.
bool Decider::Isolate(const std::string& name, const std::string& why, bool certain) {
  const auto found = d_.nodes.find(name);
  if (found == d_.nodes.end() || (found->second.isolated_until && !certain)) return false;
  Node& node = found->second;
  if (!certain) {
    if (!policy_.auto_isolate_bad_node) return false;
    int others = 0;
    int isolated = 0;
    for (const auto& [other_name, other] : d_.nodes) {
      if (other_name != name && other.usable() && other.capacity >= policy_.ranks_per_node) {
        ++others;
      }
      isolated += other.isolated_until ? 1 : 0;
    }
    const int most = std::max(
        1, static_cast<int>(policy_.isolated_share_most * static_cast<double>(d_.nodes.size())));
    if (others < policy_.nodes || isolated >= most) {
      Detail(fmt::format(
          "node {} stays in use: {}", name,
          others < policy_.nodes ? "no spare is ready" : "too many nodes are isolated already"));
      return false;
    }
  }
  Duration cooling = policy_.isolation_first;
  for (int i = 0; i < node.isolations && cooling < policy_.isolation_most; ++i) cooling *= 2;
  cooling = std::min(cooling, policy_.isolation_most);
  ++node.isolations;
  node.isolated_until = t_ + cooling;
  node.isolation_reason = why;
  node.isolation_certain = certain;
  node.blames.clear();
  const auto timer = d_.timers.find(Timer::kReturn);
  if (timer == d_.timers.end() || *node.isolated_until < timer->second) {
    SetTimer(Timer::kReturn, *node.isolated_until);
  }
  Say(fmt::format("node {} is isolated for {}: {}", name, Minutes(cooling), why));
  return true;
}

// Ends the current generation on every node that still has it.
void Decider::StopCurrent(bool abort, Duration grace, const std::string& reason) {
  d_.phase = JobPhase::kStopping;
  d_.evidence_awaited.clear();
  d_.verdict_wanted = false;
  ClearTimers();
  SetTimer(Timer::kStop, t_ + grace + policy_.stop_margin);
  for (const Placed& placed : d_.placed) {
    if (!placed.gone) Send(placed.node, StopGeneration{d_.generation, abort, reason, grace});
  }
}

std::string Decider::ResumeText() const {
  for (auto commit = d_.commits.rbegin(); commit != d_.commits.rend(); ++commit) {
    const std::string name = CheckpointName(commit->step, commit->generation);
    if (std::find(d_.avoid.begin(), d_.avoid.end(), name) == d_.avoid.end()) {
      return fmt::format("from step {}", commit->step.value());
    }
  }
  // Commits of earlier runs are not in this journal.
  return d_.generations.back().fresh
             ? "from the beginning"
             : fmt::format("from step {}", d_.generations.back().restored_step.value());
}

}  // namespace perdure::core
