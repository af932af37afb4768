#include "checkpoint/capture_plan.h"

#include <algorithm>
#include <numeric>

#include "checkpoint/safetensors.h"
#include "checkpoint/staging.h"

namespace perdure {
namespace {

bool MustBeAtOnce(const LocalEntry& entry) {
  return entry.changes == Changes::kAtAnyTime || !entry.owned;
}

}  // namespace

Result<CapturePlan> PlanCapture(const LocalState& state, const CaptureRules& rules) {
  const std::size_t count = state.structure.size();
  CapturePlan plan;
  plan.ways.resize(count, CaptureWay::kStreamed);
  std::vector<std::int64_t> bytes(count, 0);
  std::vector<std::size_t> order;
  std::int64_t at_once = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Piece& piece = state.structure[i];
    if (piece.blob) {
      plan.ways[i] = CaptureWay::kHeld;
      continue;
    }
    if (state.entries[i].same_as.has_value()) {
      plan.ways[i] = CaptureWay::kAlias;
      continue;
    }
    PERDURE_ASSIGN_OR_RETURN(bytes[i], ByteCount(piece.dtype, piece.shape));
    order.push_back(i);
    if (MustBeAtOnce(state.entries[i])) at_once += Staging::RoomFor(bytes[i]);
  }
  const bool defer = rules.may_defer && at_once <= rules.staging_bytes;
  // Room is given to what must be copied at once, then from the end of the shard backwards.
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const bool first_a = defer && MustBeAtOnce(state.entries[a]);
    const bool first_b = defer && MustBeAtOnce(state.entries[b]);
    if (first_a != first_b) return first_a;
    const Piece& x = state.structure[a];
    const Piece& y = state.structure[b];
    return DataOrder(y.dtype, y.name, x.dtype, x.name);
  });
  for (const std::size_t i : order) {
    const std::int64_t room = Staging::RoomFor(bytes[i]);
    const bool later = defer && !MustBeAtOnce(state.entries[i]);
    if (plan.staged_bytes + room > rules.staging_bytes) {
      plan.streamed_bytes += bytes[i];
      plan.blocking = plan.blocking || !later;
      continue;
    }
    plan.staged_bytes += room;
    plan.ways[i] = later ? CaptureWay::kDeferred : CaptureWay::kAtOnce;
    if (later) plan.deferred_bytes += bytes[i];
  }
  return plan;
}

}  // namespace perdure
