// Which checkpoints may go, and why. Pure: the order is that of the lineage and the step, never
// that of any clock.
//
// A checkpoint of the lineage stays when one of these holds:
//   - it is pinned
//   - it is among the newest keep_last_n good ones (CKPT-5), or newer than the last of these
//   - this generation began from it: it is the last one that was read back to the last byte, and
//     those written since are believed, not verified
//   - it is the first good one at or after a multiple of keep_every_steps
// What no lineage leads to goes once this generation has keep_last_n good ones of its own, unless
// it is pinned. What a newer generation wrote is not ours to judge (CKPT-9).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/lineage.h"
#include "perdure/ids.h"

namespace perdure {

struct RetentionPolicy {
  int keep_last_n = 3;                // below 1 counts as 1
  std::int64_t keep_every_steps = 0;  // 0: none is kept for its step
};

struct KeptCheckpoint {
  CheckpointId id;
  bool good = false;  // its manifest and the sizes of its files were checked
  bool pinned = false;
};

struct RetentionVerdict {
  CheckpointId id;
  bool retire = false;
  std::string reason;  // of either
};

// What the newest generation of `lineage` may retire. One verdict per checkpoint, newest first.
std::vector<RetentionVerdict> PlanRetention(const Lineage& lineage,
                                            const std::vector<KeptCheckpoint>& checkpoints,
                                            const RetentionPolicy& policy);

// The checkpoint that the newest generation of `lineage` began from; nothing after a fresh start.
std::optional<CheckpointId> BegunFrom(const Lineage& lineage);

}  // namespace perdure
