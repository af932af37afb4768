// Exponential backoff with full jitter, as values: the caller waits.
// Source: the "full jitter" scheme,
// https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
#pragma once

#include <cstdint>

#include "perdure/clock.h"

namespace perdure {

class Backoff {
 public:
  Backoff(Duration first, Duration most, std::uint64_t seed)
      : first_(first), most_(most), ceiling_(first), state_(seed | 1) {}

  // How long to wait before the next try: uniform in (ceiling / 2, ceiling]; the ceiling doubles up
  // to `most`.
  Duration Next();
  void Reset() { ceiling_ = first_; }

 private:
  Duration first_;
  Duration most_;
  Duration ceiling_;
  std::uint64_t state_;
};

}  // namespace perdure
