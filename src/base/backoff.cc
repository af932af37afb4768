#include "base/backoff.h"

#include <algorithm>

namespace perdure {

Duration Backoff::Next() {
  // xorshift64 (Marsaglia 2003): enough to keep callers from knocking at the same moment.
  state_ ^= state_ << 13;
  state_ ^= state_ >> 7;
  state_ ^= state_ << 17;
  const Duration ceiling = ceiling_;
  ceiling_ = std::min(ceiling_ * 2, most_);
  const double share =
      0.5 + 0.5 * static_cast<double>(state_ >> 11) / 9007199254740992.0;  // / 2^53
  return std::chrono::duration_cast<Duration>(ceiling * share);
}

}  // namespace perdure
