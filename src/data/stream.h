// The stream of sample positions as arithmetic: which positions a step consumes, when some are
// passed over and the batch may have changed on the way. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "perdure/checkpoint.h"

namespace perdure {

// Stream positions are step x batch and outgrow 63 bits before a step number does.
__extension__ typedef __int128 StreamPosition;

// From `base_step` on, which begins at `base_position`, each step consumes `batch` positions that
// no range of `skipped` holds.
struct Stream {
  std::int64_t base_step = 0;
  StreamPosition base_position = 0;
  std::int64_t batch = 1;
  std::vector<SampleRange> skipped;  // sorted, disjoint, not empty; none ends before base_position

  // The `ordinal`-th position (from 0) that this stream consumes.
  StreamPosition At(StreamPosition ordinal) const;
  // The first position that `step` (>= base_step) consumes.
  StreamPosition FirstOf(std::int64_t step) const {
    return At(static_cast<StreamPosition>(step - base_step) * batch);
  }
};

// The stream of a run that goes on with `step` of `old`, with another batch, passing over
// `skipped` as well. What `old` has consumed before `step` stays consumed: no position is used
// twice, and none is left out but those in a range (DATA-1). When that changes nothing it is `old`
// itself, so that an interrupted run saves the same bytes as one that was not.
Stream Resume(const Stream& old, std::int64_t step, std::int64_t batch,
              const std::vector<SampleRange>& skipped);

}  // namespace perdure
