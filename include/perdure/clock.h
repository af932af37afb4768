// Time. Every wait in Perdure ends at a Deadline: an absolute point of the monotonic clock, handed
// down through the calls, so that ten waits in a row share one budget instead of taking ten.
#pragma once

#include <chrono>

#include "perdure/export.h"

namespace perdure {

using Duration = std::chrono::nanoseconds;
using MonotonicTime = std::chrono::steady_clock::time_point;
using WallTime = std::chrono::system_clock::time_point;

// Where time comes from. Thread-safe. Tests pass a clock that they move by hand.
class PERDURE_API Clock {
 public:
  virtual ~Clock() = default;
  virtual MonotonicTime Now() const = 0;
  virtual WallTime WallNow() const = 0;
};

// The machine's clock. Stateless.
PERDURE_API const Clock& RealClock();

class Deadline {
 public:
  constexpr explicit Deadline(MonotonicTime at) : at_(at) {}

  static Deadline After(Duration duration, const Clock& clock = RealClock()) {
    return Deadline(clock.Now() + duration);
  }

  constexpr MonotonicTime at() const { return at_; }
  // Never negative.
  Duration Remaining(MonotonicTime now) const {
    return at_ > now ? std::chrono::duration_cast<Duration>(at_ - now) : Duration::zero();
  }
  bool Passed(MonotonicTime now) const { return now >= at_; }

  friend constexpr bool operator<(Deadline a, Deadline b) { return a.at_ < b.at_; }

 private:
  MonotonicTime at_;
};

inline Deadline Earlier(Deadline a, Deadline b) {
  return b < a ? b : a;
}

inline double Seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace perdure
