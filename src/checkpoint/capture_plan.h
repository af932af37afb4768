// When and where each piece of the state is copied. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/parts.h"
#include "perdure/status.h"

namespace perdure {

enum class CaptureWay : std::uint8_t {
  kHeld,      // a blob: Describe has copied it already
  kAlias,     // another name for a piece that is captured under its first one
  kAtOnce,    // copied before the training thread goes on
  kDeferred,  // copied behind the next forward and backward, until the fence
  kStreamed,  // never copied as a whole: written from where it lies, slice by slice, until the
              // fence
};

struct CaptureRules {
  bool may_defer = false;          // the program keeps to the fence
  std::int64_t staging_bytes = 0;  // what copies may take
};

struct CapturePlan {
  std::vector<CaptureWay> ways;  // one per piece
  std::int64_t staged_bytes = 0;
  std::int64_t deferred_bytes = 0;
  std::int64_t streamed_bytes = 0;
  // Something that may change at any time did not fit and is streamed: the training thread has to
  // stand still until the capture is complete.
  bool blocking = false;
};

// What may change at any time, and what lies in memory that the program may let go (a part that
// the checkpointer only borrows), is copied at once; the rest is deferred when that is allowed.
// What does not fit is streamed. The shard's data is written in one order (DataOrder), so what
// comes first in it is streamed: the fence opens once the writer has passed it, while the staged
// rest is still being written.
Result<CapturePlan> PlanCapture(const LocalState& state, const CaptureRules& rules);

}  // namespace perdure
