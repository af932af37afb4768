// From a journal back to what the decision core knew.
#pragma once

#include <cstdint>

#include "supervisor/core/state.h"
#include "supervisor/journal/journal.h"

namespace perdure::journal {

struct Replayed {
  core::State state;    // `seen` is empty
  core::Policy policy;  // of the last term
  std::int64_t terms = 0;
  std::int64_t last_number = 0;
  Duration last_t{};
  std::int64_t wall_epoch_ms = 0;
  std::int64_t last_wall_ms = 0;
};

// Each event is judged by the policy of its own term.
Result<Replayed> Replay(Reader& reader);

}  // namespace perdure::journal
