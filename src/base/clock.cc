#include "perdure/clock.h"

namespace perdure {
namespace {

class MachineClock final : public Clock {
 public:
  MonotonicTime Now() const override { return std::chrono::steady_clock::now(); }
  WallTime WallNow() const override { return std::chrono::system_clock::now(); }
};

}  // namespace

// Never destroyed: a program that calls exit() while threads of ours go on must not take it away
// from them.
const Clock& RealClock() {
  static const Clock* const clock = new MachineClock;
  return *clock;
}

}  // namespace perdure
