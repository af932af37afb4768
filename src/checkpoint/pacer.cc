#include "checkpoint/pacer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace perdure {
namespace {

// A save that costs ten times as much is followed within a few saves, steps more calmly.
constexpr double kSaveWeight = 0.5;
constexpr double kStepWeight = 0.1;
// Below this a step is no step, but a loop that has nothing to do.
constexpr double kStepSecondsMin = 1e-6;

void Average(std::optional<double>& average, double sample, double weight) {
  average = average.has_value() ? *average + weight * (sample - *average) : sample;
}

}  // namespace

void Pacer::Start() {
  MutexLock lock(mutex_);
  started_ = clock_.Now();
  captured_ = started_;
}

void Pacer::Stall(bool begins) {
  MutexLock lock(mutex_);
  const MonotonicTime now = clock_.Now();
  if (begins) {
    stalled_since_ = now;
    return;
  }
  const double seconds = Seconds(now - stalled_since_);
  stalled_in_step_ += seconds;
  stalled_in_save_ += seconds;
}

void Pacer::SaveBegins() {
  MutexLock lock(mutex_);
  captured_ = clock_.Now();
  asked_ = false;
  ++in_flight_;
  step_beside_save_ = true;
}

void Pacer::SaveCommitted(double durable_seconds) {
  MutexLock lock(mutex_);
  in_flight_ = std::max(0, in_flight_ - 1);
  Average(durable_, durable_seconds, kSaveWeight);
  committed_since_choice_ = true;
}

void Pacer::SaveEnded() {
  MutexLock lock(mutex_);
  in_flight_ = std::max(0, in_flight_ - 1);
}

IntervalMeasured Pacer::Measured() const {
  IntervalMeasured measured;
  measured.step_seconds = *step_;
  measured.saved = durable_.has_value() && blocked_.has_value();
  measured.blocked_seconds = blocked_.value_or(0);
  measured.durable_seconds = durable_.value_or(0);
  if (step_beside_.has_value()) {
    measured.slowdown = std::clamp(*step_beside_ / *step_ - 1, 0.0, 1.0);
  }
  measured.behind_training = behind_training_;
  measured.mean_up_seconds = EstimateMeanUpSeconds(
      history_.interruptions, Seconds(history_.up) + Seconds(clock_.Now() - started_), world_);
  return measured;
}

void Pacer::Choose() {
  const IntervalChoice next = ChooseInterval(Measured(), policy_);
  if (in_force_.has_value() && !WorthChanging(*in_force_, next)) return;
  Log().info("{}{}", next.reason,
             in_force_.has_value() ? fmt::format(" (was {} steps)", in_force_->steps) : "");
  in_force_ = next;
}

bool Pacer::EndStep() {
  MutexLock lock(mutex_);
  const MonotonicTime now = clock_.Now();
  const std::optional<MonotonicTime> began = std::exchange(step_began_, now);
  const double stalled = std::exchange(stalled_in_step_, 0);
  const bool beside_save = std::exchange(step_beside_save_, in_flight_ > 0) || in_flight_ > 0;
  if (!began.has_value()) return false;
  const double step = std::max(Seconds(now - *began) - stalled, kStepSecondsMin);
  Average(beside_save ? step_beside_ : step_, step, kStepWeight);
  if (!step_.has_value()) return false;
  const bool concluded = committed_since_choice_ && in_flight_ == 0;
  if (concluded) {
    Average(blocked_, stalled_in_save_, kSaveWeight);
    stalled_in_save_ = 0;
    committed_since_choice_ = false;
  }
  if (concluded || !in_force_.has_value()) Choose();
  if (in_flight_ > 0) return false;
  // A request that came to nothing is made again in good time.
  if (asked_ && Seconds(now - asked_at_) < in_force_->seconds) return false;
  if (!IsDue(*in_force_, Seconds(now - captured_), *step_)) return false;
  asked_ = true;
  asked_at_ = now;
  return true;
}

}  // namespace perdure
