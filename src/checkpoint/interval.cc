#include "checkpoint/interval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace perdure {
namespace {

// A large GPU job has been reported to lose one of 16,384 devices every three hours or so; a small
// one is interrupted daily by people rather than by devices.
constexpr double kRankHoursPerInterruption = 50'000;
constexpr double kHoursPerInterruptionMax = 24;
constexpr double kPriorWeight = 0.5;
constexpr double kWorthChanging = 0.2;

std::string Human(double seconds) {
  if (seconds < 0.1) return fmt::format("{:.1f} ms", seconds * 1000);
  if (seconds < 10) return fmt::format("{:.2f} s", seconds);
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.1f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

std::string Costs(const IntervalMeasured& measured) {
  if (!measured.behind_training) {
    return fmt::format("a save stops the training for {}", Human(measured.blocked_seconds));
  }
  return fmt::format(
      "a save stops the training for {} and is durable after {}, which slows steps by {:.1f} %",
      Human(measured.blocked_seconds), Human(measured.durable_seconds), measured.slowdown * 100);
}

}  // namespace

double BlockingOptimum(double blocked_seconds, double mean_up_seconds) {
  const double d = blocked_seconds;
  const double m = mean_up_seconds;
  if (d >= 2 * m) return m;
  const double ratio = d / (2 * m);
  return std::sqrt(2 * d * m) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - d;
}

double BackgroundOptimum(double blocked_seconds, double slowdown, double durable_seconds,
                         double mean_up_seconds) {
  return std::sqrt(2 * (blocked_seconds + slowdown * durable_seconds) * mean_up_seconds);
}

double EstimateMeanUpSeconds(std::int64_t interruptions, double up_seconds, int world) {
  const double expected =
      3600 * std::min(kHoursPerInterruptionMax, kRankHoursPerInterruption / std::max(world, 1));
  return (kPriorWeight * expected + std::max(up_seconds, 0.0)) /
         (kPriorWeight + static_cast<double>(interruptions));
}

IntervalChoice ChooseInterval(const IntervalMeasured& measured, const IntervalPolicy& policy) {
  PERDURE_CHECK(policy.chosen() && measured.step_seconds > 0,
                "an interval is chosen by a rule, once a step was measured");
  IntervalChoice choice;
  std::string why;
  const double step = measured.step_seconds;
  const double durable = measured.saved ? measured.durable_seconds : 0;
  if (!measured.saved) {
    choice.seconds = static_cast<double>(kStepsBeforeFirstSave) * step;
    why = "the first save of a generation comes early, to be measured";
  } else if (policy.cost_optimum) {
    const double optimum =
        measured.behind_training
            ? BackgroundOptimum(measured.blocked_seconds, measured.slowdown,
                                measured.durable_seconds, measured.mean_up_seconds)
            : BlockingOptimum(measured.blocked_seconds, measured.mean_up_seconds);
    choice.seconds = std::min(optimum, kIntervalSecondsMax);
    why = fmt::format("the cheapest, since {}, with an interruption expected every {}",
                      Costs(measured), Human(measured.mean_up_seconds));
    if (optimum > kIntervalSecondsMax) {
      why += fmt::format("; {} would be, but never more than {}", Human(optimum),
                         Human(kIntervalSecondsMax));
    }
  }
  if (policy.max_lost > Duration::zero()) {
    const double lost = Seconds(policy.max_lost);
    const double bound = lost - durable;
    if (why.empty() || bound < choice.seconds) {
      choice.seconds = std::max(bound, 0.0);
      choice.at_most = true;
      why = fmt::format("at most {} may be lost", Human(lost));
      if (measured.saved) {
        why += fmt::format(", and a save is durable after {}", Human(durable));
      }
    }
  }
  // One in flight at a time, and a step is not divided.
  const double least = std::max(step, measured.behind_training ? durable : 0.0);
  if (choice.seconds < least) {
    choice.seconds = least;
    why += fmt::format("; not sooner than {}",
                       least == step ? std::string("the next step") : "the save before is durable");
    if (choice.at_most && least + durable > Seconds(policy.max_lost)) {
      why += fmt::format(", so up to {} may be lost after all", Human(least + durable));
    }
  }
  choice.steps = std::max<std::int64_t>(
      1, static_cast<std::int64_t>(choice.seconds / step + (choice.at_most ? 0 : 0.5)));
  choice.reason = fmt::format("a checkpoint every {}, about {} step{}: {}", Human(choice.seconds),
                              choice.steps, choice.steps == 1 ? "" : "s", why);
  return choice;
}

bool WorthChanging(const IntervalChoice& in_force, const IntervalChoice& next) {
  if (next.at_most && next.seconds < in_force.seconds * (1 - kWorthChanging / 4)) return true;
  return std::abs(next.seconds - in_force.seconds) > kWorthChanging * in_force.seconds;
}

bool IsDue(const IntervalChoice& choice, double seconds_since_capture, double step_seconds) {
  // Asked one step later it would come two steps from now.
  const double later = seconds_since_capture + 2 * step_seconds;
  return choice.at_most ? later > choice.seconds : later - step_seconds / 2 > choice.seconds;
}

}  // namespace perdure
