#include "supervisor/status/status.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/posix.h"

namespace perdure {
namespace {

using core::Durable;
using core::JobPhase;
using JobState = core::State;
using nlohmann::json;

constexpr std::size_t kRanksShownMost = 4096;

std::int64_t Ms(Duration t) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(t).count();
}

std::optional<std::int64_t> Ms(const std::optional<Duration>& t) {
  return t ? std::optional<std::int64_t>(Ms(*t)) : std::nullopt;
}

std::string WallAt(const Durable& durable, Duration t) {
  return FormatWallTime(std::chrono::system_clock::time_point(
      std::chrono::milliseconds(durable.wall_epoch_ms + Ms(t))));
}

template <class T>
json OrNull(const std::optional<T>& value) {
  return value ? json(*value) : json();
}

// The current generation as far as it is known: what is seen is newer than what is journalled.
struct Now {
  perdure::Step completed{-1};
  std::optional<double> loss;
  double step_seconds = 0;
};

Now NowOf(const JobState& state) {
  Now now;
  const core::GenerationRecord* record = core::CurrentRecord(state.durable);
  if (record == nullptr) return now;
  now.completed = record->completed;
  now.loss = record->loss;
  now.step_seconds = record->median_step_seconds;
  const core::Seen& seen = state.seen;
  if (seen.generation != record->number) return now;
  now.completed = std::max(now.completed, seen.completed);
  if (seen.loss) now.loss = seen.loss;
  if (!seen.step_seconds.empty()) {
    now.step_seconds = std::accumulate(seen.step_seconds.begin(), seen.step_seconds.end(), 0.0) /
                       static_cast<double>(seen.step_seconds.size());
  }
  return now;
}

struct Headline {
  std::string state;
  std::string sentence;
  bool must_act = false;
};

Headline HeadlineOf(const core::Policy& policy, const JobState& state, const Now& now) {
  const Durable& d = state.durable;
  const std::string generation = fmt::format("generation {}", d.generation.value());
  switch (d.phase) {
    case JobPhase::kWaiting: {
      int usable = 0;
      for (const auto& [name, node] : d.nodes) usable += node.usable() ? 1 : 0;
      const int missing = policy.nodes - usable;
      if (missing > 0) {
        return {"waiting",
                fmt::format("not training: waiting for {} more of {} nodes; start or repair them",
                            missing, policy.nodes),
                d.generations.empty() ? false : true};
      }
      return {d.generations.empty() ? "waiting" : "healing",
              d.generations.empty() ? std::string("about to start")
                                    : std::string("healing: about to restart; nothing to do"),
              false};
    }
    case JobPhase::kRunning:
      if (now.completed.value() < 0) {
        const bool first = d.generations.size() <= 1;
        return {first ? "training" : "healing",
                fmt::format("{}: {} is starting up; nothing to do", first ? "starting" : "healing",
                            generation),
                false};
      }
      return {"training",
              fmt::format("training: {} has completed step {}; nothing to do", generation,
                          now.completed.value()),
              false};
    case JobPhase::kJudging:
      return {"healing", "healing: finding out who is to blame; nothing to do", false};
    case JobPhase::kStopping:
      if (d.afterwards.finish) {
        return {"stopping", fmt::format("ending: {}", d.afterwards.sentence), false};
      }
      return {"healing", fmt::format("healing: ending {}; nothing to do", generation), false};
    case JobPhase::kLeaving:
      return {"stopping", "stopping: one coordinated checkpoint, then the end", false};
    case JobPhase::kDone:
      if (d.exit_code == 0) {
        return {"done", fmt::format("done: {}", d.afterwards.sentence), false};
      }
      return {"failed",
              fmt::format("ended with exit code {}: {}{}", d.exit_code, d.afterwards.sentence,
                          d.afterwards.next_command.empty()
                              ? ""
                              : fmt::format("; next: {}", d.afterwards.next_command)),
              d.exit_code < 128};
  }
  return {"unknown", "", true};
}

json NodesOf(const Durable& d, const JobState& state, bool live, Duration t) {
  json nodes = json::array();
  for (const auto& [name, node] : d.nodes) {
    json item;
    item["node"] = name;
    json ranks = json::array();
    for (const core::Placed& placed : d.placed) {
      if (placed.node != name || placed.gone) continue;
      for (int i = 0; i < placed.count; ++i) ranks.push_back(placed.first_rank.value() + i);
    }
    item["state"] = node.isolated_until      ? "isolated"
                    : !node.present          ? "lost"
                    : node.busy_with.value() ? "ending old ranks"
                    : ranks.empty()          ? "spare"
                                             : "in use";
    item["ranks"] = std::move(ranks);
    item["capacity"] = node.capacity;
    item["agent_pid"] = node.agent_pid;
    if (node.isolated_until) {
      item["reason"] = node.isolation_reason;
      item["returns_in_seconds"] = std::max(0.0, Seconds(*node.isolated_until - t));
    }
    if (live) {
      const auto seen = state.seen.nodes.find(name);
      item["connected"] = seen != state.seen.nodes.end() && seen->second.connected;
    }
    nodes.push_back(std::move(item));
  }
  return nodes;
}

json RanksOf(const Durable& d, const core::Seen& seen) {
  json ranks = json::array();
  if (seen.generation != d.generation) return ranks;
  for (std::size_t i = 0; i < seen.ranks.size() && i < kRanksShownMost; ++i) {
    const core::RankSeen& rank = seen.ranks[i];
    json item;
    const Rank number(static_cast<std::int64_t>(i));
    item["rank"] = number.value();
    item["node"] = core::NodeOf(d, number);
    if (rank.observation) {
      item["pid"] = rank.observation->pid;
      item["cpu_seconds"] = rank.observation->cpu_seconds;
      item["resident_bytes"] = rank.observation->resident_bytes;
    }
    if (rank.report) {
      item["phase"] = rank.report->phase_name.empty() ? std::string(NameOf(rank.report->phase))
                                                      : rank.report->phase_name;
      item["step"] = rank.report->step.value();
      item["completed_step"] = rank.report->completed_step.value();
      item["silent_seconds"] = Seconds(seen.awake() - rank.spoke);
    }
    if (const auto end = d.ends.find(number); end != d.ends.end()) {
      item["exit_code"] = OrNull(end->second.exit_code);
      item["signal"] = OrNull(end->second.signal);
    }
    ranks.push_back(std::move(item));
  }
  return ranks;
}

json ReasonOf(const Durable& d) {
  if (!d.reason) return json();
  json reason;
  reason["sentence"] = d.reason->head;
  reason["class"] = core::NameOf(d.reason->failure_class);
  reason["rank"] = d.reason->rank ? json(d.reason->rank->value()) : json();
  reason["node"] = d.reason->node;
  reason["exit_code"] = OrNull(d.reason->exit_code);
  reason["signal"] = OrNull(d.reason->signal);
  reason["error_line"] = d.reason->error_line;
  return reason;
}

std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

JobFacts FactsOf(const JobState& state, Duration t) {
  const Durable& d = state.durable;
  JobFacts facts;
  facts.begun_ms = Ms(d.begun);
  facts.until_ms = Ms(d.finished.value_or(t));
  for (const core::GenerationRecord& record : d.generations) {
    GenerationFacts generation;
    generation.number = record.number.value();
    generation.decided_ms = Ms(record.decided);
    generation.opened_ms = Ms(record.opened);
    generation.restored = record.restored.has_value();
    generation.restored_step = record.restored_step.value();
    generation.first_step_ms = Ms(record.first_step);
    generation.last_completed_ms = Ms(record.last_completed);
    generation.completed = record.completed.value();
    generation.spent = record.spent;
    generation.last_progress_ms = Ms(record.last_progress);
    generation.judged_ms = Ms(record.judged);
    generation.ended_ms = Ms(record.ended);
    const core::Seen& seen = state.seen;
    if (seen.generation == record.number && seen.opened && !record.judged) {
      if (!generation.opened_ms) generation.opened_ms = Ms(seen.opened);
      if (!generation.first_step_ms) generation.first_step_ms = Ms(seen.first_step);
      if (seen.completed >= record.completed && seen.reporting > 0) {
        generation.completed = seen.completed.value();
        generation.last_completed_ms = Ms(seen.last_completed);
        generation.spent = seen.spent;
      }
    }
    facts.generations.push_back(generation);
  }
  for (const core::Interruption& interruption : d.interruptions) {
    InterruptionFacts fact;
    fact.time = WallAt(d, interruption.judged);
    fact.generation = interruption.generation.value();
    if (interruption.rank) fact.rank = interruption.rank->value();
    fact.node = interruption.node;
    fact.failure_class = core::NameOf(interruption.failure_class);
    fact.reason = interruption.reason;
    fact.last_progress_ms = Ms(interruption.last_progress);
    fact.judged_ms = Ms(interruption.judged);
    fact.completed = interruption.completed.value();
    facts.interruptions.push_back(std::move(fact));
  }
  return facts;
}

std::string StatusJsonOf(const core::Policy& policy, const JobState& state, Duration t, bool live) {
  const Durable& d = state.durable;
  const Now now = NowOf(state);
  const Headline headline = HeadlineOf(policy, state, now);
  const Accounting accounting = Account(FactsOf(state, t));
  json status;
  status["job"] = policy.job;
  status["state"] = headline.state;
  status["headline"] = headline.sentence;
  status["must_act"] = headline.must_act;
  status["answered_by"] = live ? "supervisor" : "journal";
  status["phase"] = core::NameOf(d.phase);
  status["term"] = d.term;
  status["t"] = Seconds(t);
  status["wall_seconds"] = static_cast<double>(accounting.wall_ms) / 1000;
  status["generation"] = d.generation.value();
  status["world_size"] = policy.world_size();
  status["step"] = now.completed.value();
  status["loss"] = OrNull(now.loss);
  status["steps_per_second"] = now.step_seconds > 0 ? json(1 / now.step_seconds) : json();
  status["ettr"] = accounting.ettr;
  if (d.commits.empty()) {
    status["last_checkpoint"] = nullptr;
  } else {
    const core::Commit& commit = d.commits.back();
    status["last_checkpoint"] = {{"step", commit.step.value()},
                                 {"generation", commit.generation.value()},
                                 {"name", core::CheckpointName(commit.step, commit.generation)},
                                 {"bytes", commit.bytes},
                                 {"seconds", commit.seconds},
                                 {"age_seconds", std::max(0.0, Seconds(t - commit.t))}};
  }
  status["saves_failed_in_a_row"] = d.saves_failed_in_a_row;
  status["restarts"] = {
      {"used", d.restarts_used},      {"most", policy.max_auto_restart},
      {"total", d.restarts_total},    {"without_progress", d.no_progress_restarts},
      {"user_code", d.user_failures}, {"infrastructure", d.infrastructure_failures},
      {"preemption", d.preemptions}};
  status["nodes"] = NodesOf(d, state, live, t);
  status["ranks"] = live ? RanksOf(d, state.seen) : json::array();
  status["interruptions"] = d.interruptions.size();
  status["avoided_checkpoints"] = d.avoid;
  status["last_sentence"] = d.last_sentence;
  status["reason"] = ReasonOf(d);
  status["exit_code"] = d.phase == JobPhase::kDone ? json(d.exit_code) : json();
  status["next_command"] =
      d.afterwards.next_command.empty() ? json() : json(d.afterwards.next_command);
  return Dump(status);
}

std::string ReportJsonOf(const core::Policy& policy, const JobState& state, Duration t) {
  const Durable& d = state.durable;
  json report = json::parse(AccountingJson(Account(FactsOf(state, t))));
  const Now now = NowOf(state);
  report["job"] = policy.job;
  report["state"] = HeadlineOf(policy, state, now).state;
  report["world_size"] = policy.world_size();
  report["generations"] = d.generations.size();
  report["step"] = now.completed.value();
  report["begun"] = WallAt(d, d.begun);
  report["finished"] = d.finished ? json(WallAt(d, *d.finished)) : json();
  report["exit_code"] = d.phase == JobPhase::kDone ? json(d.exit_code) : json();
  report["end"] = d.phase == JobPhase::kDone ? json(d.afterwards.sentence) : json();
  report["restarts"] = d.restarts_total;
  report["preemptions"] = d.preemptions;
  report["reason"] = d.phase == JobPhase::kDone && d.exit_code != 0 ? ReasonOf(d) : json();
  return Dump(report);
}

}  // namespace perdure
