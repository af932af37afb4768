// How often to save: what is measured in, the interval and its reason out. Pure.
//
// Symbols, in seconds: δ the training stands still for a save; L until the save is durable; α the
// share by which steps are slower meanwhile; M mean time between interruptions of the whole job;
// T from one save's capture to the next one's.
//
//   blocking saves   T = √(2δM) · (1 + ⅓·√(δ/2M) + ⅑·δ/2M) − δ for δ < 2M, else M
//                    J. Daly, "A higher order estimate of the optimum checkpoint interval for
//                    restart dumps", 2006; the first factor alone is J. Young's, 1974
//   saves behind     waste W(T) = (δ + αL)/T + (T/2 + L)/M is least at T = √(2(δ + αL)M); L itself
//   the training     moves the loss, not the optimum, but T ≥ L: one save is in flight at a time
//   at most B lost   an interruption just before a save is durable loses T + L, so T = B − L
#pragma once

#include <cstdint>
#include <string>

#include "perdure/clock.h"

namespace perdure {

struct IntervalPolicy {
  bool cost_optimum = false;  // the cheapest interval
  Duration max_lost{};        // no more work than this may be lost; 0: no bound
  bool chosen() const { return cost_optimum || max_lost > Duration::zero(); }
};

// Of the job before this generation.
struct InterruptionHistory {
  std::int64_t interruptions = 0;
  Duration up{};  // how long its generations ran
};

struct IntervalMeasured {
  double step_seconds = 0;  // of a step while no save is in flight
  bool saved = false;       // whether a save was measured: the next three are known
  double blocked_seconds = 0;
  double durable_seconds = 0;
  double slowdown = 0;
  bool behind_training = true;
  double mean_up_seconds = 0;  // M
};

struct IntervalChoice {
  double seconds = 0;      // T
  std::int64_t steps = 1;  // about so many
  bool at_most = false;    // T is a bound: rather early than late
  std::string reason;      // one sentence, with the figures
};

// The longest interval when only costs count: that M was estimated too long must not cost a day.
inline constexpr double kIntervalSecondsMax = 3600;
// Before the first save of a generation nothing is known of saves, so there is one soon.
inline constexpr std::int64_t kStepsBeforeFirstSave = 10;

// `measured.step_seconds` is positive and `policy.chosen()`.
IntervalChoice ChooseInterval(const IntervalMeasured& measured, const IntervalPolicy& policy);

// Whether `next` is different enough from what is in force to be worth a word: by a fifth, or a
// shorter bound.
bool WorthChanging(const IntervalChoice& in_force, const IntervalChoice& next);

// Whether a save that is asked for now, and so is taken one step from now, is the one that keeps
// the interval.
bool IsDue(const IntervalChoice& choice, double seconds_since_capture, double step_seconds);

double BlockingOptimum(double blocked_seconds, double mean_up_seconds);
double BackgroundOptimum(double blocked_seconds, double slowdown, double durable_seconds,
                         double mean_up_seconds);

// M, from few interruptions at first: the mean of the Gamma posterior whose prior is worth half an
// interruption in the time that a world of this size may expect. Never infinite.
double EstimateMeanUpSeconds(std::int64_t interruptions, double up_seconds, int world);

}  // namespace perdure
