// Who belongs together after a split. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/group.h"
#include "perdure/status.h"

namespace perdure {

// What one member asks for.
struct SplitWish {
  std::int64_t color = 0;   // negative: to belong to none
  std::int64_t key = 0;     // the order among those of the same color, then by rank
  std::int64_t number = 0;  // of this split among those of the communicator
  friend bool operator==(const SplitWish&, const SplitWish&) = default;
};

// The group of member `parent.rank`; nothing for a negative color. `wishes` are those of all
// members, by rank. kInvalidArgument when the numbers differ: then threads of a member called Split
// in another order.
Result<std::optional<Group>> SplitGroup(const Group& parent, const std::vector<SplitWish>& wishes);

}  // namespace perdure
