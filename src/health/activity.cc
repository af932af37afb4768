#include "health/activity.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace perdure {
namespace {

double& BucketOf(Phase phase, TimeSpent& spent) {
  switch (phase) {
    case Phase::kInit:
      return spent.init;
    case Phase::kRestore:
      return spent.restore;
    case Phase::kData:
      return spent.data;
    case Phase::kCompute:
    case Phase::kUpdate:
      return spent.compute;
    case Phase::kComm:
      return spent.communication;
    case Phase::kCheckpoint:
      return spent.checkpoint;
    case Phase::kEval:
      return spent.eval;
    case Phase::kIdle:
      return spent.other;
  }
  return spent.other;
}

}  // namespace

Activity::Activity(const Clock& clock, std::function<void()> on_change)
    : clock_(clock), on_change_(std::move(on_change)) {
  const MonotonicTime now = clock_.Now();
  stack_.push_back(Entry{0, Phase::kInit, "", std::nullopt, now});
  booked_until_ = now;
}

std::uint64_t Activity::Enter(Phase phase, std::string name, std::optional<Duration> deadline) {
  std::uint64_t token = 0;
  {
    MutexLock lock(mutex_);
    const MonotonicTime now = clock_.Now();
    Book(now);
    token = next_token_++;
    stack_.push_back(Entry{token, phase, std::move(name), deadline, now});
  }
  if (on_change_) on_change_();
  return token;
}

void Activity::Leave(std::uint64_t token) {
  {
    MutexLock lock(mutex_);
    const auto entry = std::find_if(stack_.begin(), stack_.end(),
                                    [token](const Entry& e) { return e.token == token; });
    PERDURE_CHECK(token != 0 && entry != stack_.end(), "a phase is left that was not entered");
    const MonotonicTime now = clock_.Now();
    Book(now);
    const bool innermost = entry + 1 == stack_.end();
    stack_.erase(entry);
    if (innermost) stack_.back().since = now;
  }
  if (on_change_) on_change_();
}

void Activity::SetBase(Phase phase) {
  {
    MutexLock lock(mutex_);
    const MonotonicTime now = clock_.Now();
    Book(now);
    stack_.front().phase = phase;
    if (stack_.size() == 1) stack_.front().since = now;
  }
  if (on_change_) on_change_();
}

void Activity::BeginStep(Step step) {
  {
    MutexLock lock(mutex_);
    facts_.step = step;
  }
  if (on_change_) on_change_();
}

void Activity::EndStep(Step step, std::optional<double> loss, bool loss_finite,
                       std::int64_t samples) {
  {
    MutexLock lock(mutex_);
    facts_.completed_step = step;
    if (loss.has_value()) facts_.loss = loss;
    facts_.loss_finite = loss_finite && (!loss.has_value() || std::isfinite(*loss));
    facts_.samples += samples;
  }
  if (on_change_) on_change_();
}

RankReport Activity::Snapshot() const {
  MutexLock lock(mutex_);
  const MonotonicTime now = clock_.Now();
  RankReport report = facts_;
  const Entry& innermost = stack_.back();
  report.phase = innermost.phase;
  report.phase_name = innermost.name;
  report.phase_deadline = innermost.deadline;
  report.time_in_phase = now - innermost.since;
  BucketOf(innermost.phase, report.time_spent) += Seconds(now - booked_until_);
  return report;
}

void Activity::Book(MonotonicTime now) {
  BucketOf(stack_.back().phase, facts_.time_spent) += Seconds(now - booked_until_);
  booked_until_ = now;
}

}  // namespace perdure
