// What this process is doing, kept where any thread can read it: the phase it says it is in, the
// step, the last figures, and where its time went. The reporter turns it into heartbeats; the
// accounting of the whole job is made from `TimeSpent`.
//
// Phases nest: what is entered last is what the process is doing, and it gets the time.
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "control/messages.h"
#include "perdure/clock.h"
#include "perdure/health.h"

namespace perdure {

class Activity {
 public:
  // The process begins in phase init. `on_change` is called, without any lock held, after each
  // change of step or phase.
  Activity(const Clock& clock, std::function<void()> on_change);

  // Enters a phase; the token leaves it again, in any order.
  std::uint64_t Enter(Phase phase, std::string name, std::optional<Duration> deadline);
  void Leave(std::uint64_t token);

  // Replaces what is at the bottom of the stack: what the process does when it has entered nothing
  // else.
  void SetBase(Phase phase);

  void BeginStep(Step step);
  // The step is over; `loss` is kept when it has a value.
  void EndStep(Step step, std::optional<double> loss, bool loss_finite, std::int64_t samples);

  // Everything a heartbeat says, but for who says it and the state of the communicators.
  RankReport Snapshot() const;

 private:
  struct Entry {
    std::uint64_t token;
    Phase phase;
    std::string name;
    std::optional<Duration> deadline;
    MonotonicTime since;  // when it became the innermost one, last
  };

  // Books the time since the last booking to the innermost phase.
  void Book(MonotonicTime now) PERDURE_REQUIRES(mutex_);

  const Clock& clock_;
  const std::function<void()> on_change_;

  mutable Mutex mutex_;
  std::vector<Entry> stack_ PERDURE_GUARDED_BY(mutex_);  // never empty
  std::uint64_t next_token_ PERDURE_GUARDED_BY(mutex_) = 1;
  MonotonicTime booked_until_ PERDURE_GUARDED_BY(mutex_);
  RankReport facts_ PERDURE_GUARDED_BY(mutex_);
};

}  // namespace perdure
