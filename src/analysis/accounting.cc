#include "analysis/accounting.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

namespace perdure {
namespace {

using nlohmann::json;

constexpr std::string_view kNames[kBuckets] = {
    "compute", "communication", "data",    "checkpoint", "init",       "restore",
    "lost",    "detection",     "restart", "queued",     "evaluation", "other"};

// Goes along the job's time: every stretch is given to one bucket, or shared out to the
// millisecond.
class Timeline {
 public:
  Timeline(Accounting& result, std::int64_t begun, std::int64_t until)
      : result_(result), cursor_(begun), until_(std::max(begun, until)) {}

  // Everything up to `end` goes into `bucket`.
  void To(std::int64_t end, Bucket bucket) { Add(bucket, Advance(end)); }

  // Everything up to `end`, as `parts` (milliseconds) say: scaled down when they are more than
  // there is; what they leave over is kOther.
  void To(std::int64_t end, const std::array<double, kBuckets>& parts) {
    std::int64_t left = Advance(end);
    const double length = static_cast<double>(left);
    const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
    const double scale = sum > length ? length / sum : 1.0;
    for (std::size_t i = 0; i < kBuckets; ++i) {
      const auto part = std::min(left, static_cast<std::int64_t>(std::llround(parts[i] * scale)));
      Add(static_cast<Bucket>(i), part);
      left -= part;
    }
    Add(Bucket::kOther, left);
  }

 private:
  std::int64_t Advance(std::int64_t end) {
    const std::int64_t from = cursor_;
    cursor_ = std::clamp(end, cursor_, until_);
    return cursor_ - from;
  }
  void Add(Bucket bucket, std::int64_t ms) { result_.ms[static_cast<std::size_t>(bucket)] += ms; }

  Accounting& result_;
  std::int64_t cursor_;
  const std::int64_t until_;
};

std::int64_t StepsDone(const GenerationFacts& generation) {
  if (!generation.first_step_ms) return 0;
  return std::max<std::int64_t>(0, generation.completed - generation.restored_step);
}

// Which share of a generation's steps was rolled back by a later generation?
std::vector<double> LostShares(const std::vector<GenerationFacts>& generations) {
  std::vector<double> shares(generations.size(), 0.0);
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = generations.size(); i-- > 0;) {
    const GenerationFacts& generation = generations[i];
    const std::int64_t done = StepsDone(generation);
    if (done > 0) {
      const std::int64_t kept = std::clamp<std::int64_t>(
          std::min(generation.completed, limit) - generation.restored_step, 0, done);
      shares[i] = static_cast<double>(done - kept) / static_cast<double>(done);
    }
    if (generation.restored) limit = std::min(limit, generation.restored_step);
  }
  return shares;
}

std::array<double, kBuckets> PartsOf(const TimeSpent& spent, double lost_share) {
  std::array<double, kBuckets> parts{};
  const auto set = [&](Bucket bucket, double seconds) {
    const double ms = std::isfinite(seconds) && seconds > 0 ? seconds * 1000 : 0;
    parts[static_cast<std::size_t>(bucket)] = ms;
  };
  set(Bucket::kCompute, spent.compute * (1 - lost_share));
  set(Bucket::kCommunication, spent.communication * (1 - lost_share));
  set(Bucket::kData, spent.data * (1 - lost_share));
  set(Bucket::kLost, (spent.compute + spent.communication + spent.data) * lost_share);
  set(Bucket::kCheckpoint, spent.checkpoint);
  set(Bucket::kInit, spent.init);
  set(Bucket::kRestore, spent.restore);
  set(Bucket::kEvaluation, spent.eval);
  set(Bucket::kOther, spent.other);
  return parts;
}

InterruptionCost CostOf(const InterruptionFacts& interruption,
                        const std::vector<GenerationFacts>& generations) {
  InterruptionCost cost;
  cost.facts = interruption;
  cost.detected_seconds = static_cast<double>(std::max<std::int64_t>(
                              0, interruption.judged_ms - interruption.last_progress_ms)) /
                          1000;
  bool rolled_back = false;
  for (const GenerationFacts& generation : generations) {
    if (generation.number <= interruption.generation) continue;
    if (generation.restored && !rolled_back) {
      rolled_back = true;
      cost.steps_lost =
          std::max<std::int64_t>(0, interruption.completed - generation.restored_step);
    }
    if (generation.first_step_ms) {
      cost.recovered_seconds =
          static_cast<double>(*generation.first_step_ms - interruption.judged_ms) / 1000;
      break;
    }
  }
  return cost;
}

std::string Bar(double share) {
  return std::string(static_cast<std::size_t>(std::lround(std::clamp(share, 0.0, 1.0) * 40)), '#');
}

}  // namespace

std::string_view NameOf(Bucket bucket) {
  return kNames[static_cast<std::size_t>(bucket)];
}

Accounting Account(const JobFacts& facts) {
  Accounting result;
  const std::int64_t until = std::max(facts.begun_ms, facts.until_ms);
  result.wall_ms = until - facts.begun_ms;
  Timeline timeline(result, facts.begun_ms, until);
  const std::vector<double> lost = LostShares(facts.generations);
  for (std::size_t i = 0; i < facts.generations.size(); ++i) {
    const GenerationFacts& generation = facts.generations[i];
    const Bucket starting = i == 0 ? Bucket::kInit : Bucket::kRestart;
    timeline.To(generation.decided_ms, Bucket::kQueued);
    const std::int64_t ended = generation.ended_ms.value_or(until);
    const std::int64_t last_sign = generation.last_progress_ms.value_or(ended);
    if (!generation.opened_ms) {
      timeline.To(last_sign, starting);
    } else {
      timeline.To(std::min(*generation.opened_ms, last_sign), starting);
      const std::int64_t last_step =
          std::min(generation.last_completed_ms.value_or(last_sign), last_sign);
      timeline.To(last_step, PartsOf(generation.spent, lost[i]));
      timeline.To(last_sign, generation.judged_ms ? Bucket::kLost : Bucket::kOther);
    }
    if (generation.judged_ms) {
      timeline.To(*generation.judged_ms, Bucket::kDetection);
      timeline.To(ended, Bucket::kRestart);
    }
  }
  timeline.To(until, Bucket::kQueued);

  const std::int64_t useful =
      result.of(Bucket::kCompute) + result.of(Bucket::kCommunication) + result.of(Bucket::kData);
  if (result.wall_ms > 0) {
    result.ettr = static_cast<double>(useful) / static_cast<double>(result.wall_ms);
  }
  double recovery = 0;
  int recovered = 0;
  for (const InterruptionFacts& interruption : facts.interruptions) {
    result.interruptions.push_back(CostOf(interruption, facts.generations));
    const InterruptionCost& cost = result.interruptions.back();
    result.steps_lost += cost.steps_lost;
    if (cost.recovered_seconds) {
      recovery += *cost.recovered_seconds;
      ++recovered;
    }
  }
  if (!facts.interruptions.empty()) {
    result.mean_seconds_between_interruptions = static_cast<double>(result.wall_ms) / 1000 /
                                                static_cast<double>(facts.interruptions.size());
  }
  if (recovered > 0) result.mean_recovery_seconds = recovery / recovered;
  return result;
}

std::string AccountingJson(const Accounting& accounting) {
  json object;
  object["wall_seconds"] = static_cast<double>(accounting.wall_ms) / 1000;
  json& buckets = object["buckets_seconds"] = json::object();
  for (std::size_t i = 0; i < kBuckets; ++i) {
    buckets[std::string(kNames[i])] = static_cast<double>(accounting.ms[i]) / 1000;
  }
  object["ettr"] = accounting.ettr;
  object["steps_lost"] = accounting.steps_lost;
  const auto number = [](const std::optional<double>& value) {
    return value ? json(*value) : json();
  };
  object["mean_seconds_between_interruptions"] =
      number(accounting.mean_seconds_between_interruptions);
  object["mean_recovery_seconds"] = number(accounting.mean_recovery_seconds);
  json& list = object["interruptions"] = json::array();
  for (const InterruptionCost& cost : accounting.interruptions) {
    list.push_back({{"time", cost.facts.time},
                    {"generation", cost.facts.generation},
                    {"node", cost.facts.node},
                    {"rank", cost.facts.rank ? json(*cost.facts.rank) : json()},
                    {"class", cost.facts.failure_class},
                    {"reason", cost.facts.reason},
                    {"detected_seconds", cost.detected_seconds},
                    {"recovered_seconds", number(cost.recovered_seconds)},
                    {"steps_lost", cost.steps_lost}});
  }
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string AccountingTable(const Accounting& accounting) {
  std::string text;
  if (accounting.interruptions.empty()) {
    text += "No interruptions.\n";
  } else {
    text += fmt::format("{:>3}  {:>4}  {:<6}  {:<14}  {:>9}  {:>9}  {:>5}  {}\n", "gen", "rank",
                        "node", "class", "detected", "recovered", "lost", "what was blamed");
    for (const InterruptionCost& cost : accounting.interruptions) {
      text += fmt::format(
          "{:>3}  {:>4}  {:<6}  {:<14}  {:>7.2f} s  {:>9}  {:>5}  {}\n", cost.facts.generation,
          cost.facts.rank ? std::to_string(*cost.facts.rank) : "-",
          cost.facts.node.empty() ? "-" : cost.facts.node, cost.facts.failure_class,
          cost.detected_seconds,
          cost.recovered_seconds ? fmt::format("{:.2f} s", *cost.recovered_seconds) : "not yet",
          cost.steps_lost, cost.facts.reason);
    }
  }
  text += fmt::format("\n{:.1f} s of wall time, mean over the ranks:\n",
                      static_cast<double>(accounting.wall_ms) / 1000);
  for (std::size_t i = 0; i < kBuckets; ++i) {
    if (accounting.ms[i] == 0) continue;
    const double share = accounting.wall_ms == 0 ? 0
                                                 : static_cast<double>(accounting.ms[i]) /
                                                       static_cast<double>(accounting.wall_ms);
    text += fmt::format("  {:<14} {:>10.3f} s  {:>5.1f} %  {}\n", kNames[i],
                        static_cast<double>(accounting.ms[i]) / 1000, share * 100, Bar(share));
  }
  text += fmt::format("\nETTR {:.1f} % (time in steps that count / wall time), {} steps lost\n",
                      accounting.ettr * 100, accounting.steps_lost);
  return text;
}

}  // namespace perdure
