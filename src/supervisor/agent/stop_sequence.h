// How the processes of a generation are ended, as a decision without a clock of its own:
//
//  1. the ranks were told over their streams; they get kHeadStart, because a SIGTERM that
//     overtakes the message would look like a preemption;
//  2. SIGCONT and SIGTERM, once;
//  3. the grace passes;
//  4. SIGKILL, again with each look, for processes that were born meanwhile;
//  5. after kUnkillableAfter more, what is left does not go (uninterruptible sleep): it is
//     reported.
// Nothing alive at any moment: done.
#pragma once

#include "perdure/clock.h"

namespace perdure::agent {

inline constexpr Duration kHeadStart = std::chrono::milliseconds(100);
inline constexpr Duration kUnkillableAfter = std::chrono::seconds(10);

class StopSequence {
 public:
  enum class Act { kWait, kTerminate, kKill, kDone, kGiveUp };

  StopSequence(MonotonicTime now, Duration grace)
      : terminate_at_(now + kHeadStart), kill_at_(now + kHeadStart + grace) {}

  // A later request never prolongs an earlier one.
  void Hasten(MonotonicTime now, Duration grace) { kill_at_ = std::min(kill_at_, now + grace); }

  Act Next(MonotonicTime now, bool anything_alive) {
    if (!anything_alive) return Act::kDone;
    if (now >= kill_at_ + kUnkillableAfter) return Act::kGiveUp;
    if (now >= kill_at_) return Act::kKill;
    if (now < terminate_at_ || terminated_) return Act::kWait;
    terminated_ = true;
    return Act::kTerminate;
  }

 private:
  MonotonicTime terminate_at_;
  MonotonicTime kill_at_;
  bool terminated_ = false;
};

}  // namespace perdure::agent
