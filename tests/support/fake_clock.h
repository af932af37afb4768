// A clock that tests move by hand. Thread-safe.
#pragma once

#include <atomic>

#include "perdure/clock.h"

namespace perdure {

class FakeClock final : public Clock {
 public:
  MonotonicTime Now() const override { return MonotonicTime(Duration(nanoseconds_.load())); }
  WallTime WallNow() const override {
    return WallTime(std::chrono::duration_cast<WallTime::duration>(
        std::chrono::hours(24 * 365 * 50) + Duration(nanoseconds_.load())));
  }
  void Advance(Duration by) { nanoseconds_ += by.count(); }

 private:
  std::atomic<std::int64_t> nanoseconds_{1'000'000'000};
};

}  // namespace perdure
