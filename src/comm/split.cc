#include "comm/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/world.h"

namespace perdure {

Result<std::optional<Group>> SplitGroup(const Group& parent, const std::vector<SplitWish>& wishes) {
  const SplitWish& own = wishes[static_cast<std::size_t>(parent.rank)];
  std::vector<int> members;
  for (int rank = 0; rank < parent.size(); ++rank) {
    const SplitWish& wish = wishes[static_cast<std::size_t>(rank)];
    if (wish.number != own.number) {
      return Status(Code::kInvalidArgument,
                    fmt::format("communicator {}: rank {} is at its split number {}, rank {} at "
                                "{}; call Split from one thread",
                                parent.name, parent.JobRank(rank).value(), wish.number,
                                parent.self().value(), own.number));
    }
    if (wish.color == own.color) members.push_back(rank);
  }
  if (own.color < 0) return std::optional<Group>();
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return wishes[static_cast<std::size_t>(a)].key < wishes[static_cast<std::size_t>(b)].key;
  });
  Group group{.name = fmt::format("{}/{}.{}", parent.name, own.number, own.color),
              .id = fmt::format("{}/{}.{}", parent.id, own.number, own.color),
              .rank = 0,
              .members = {},
              .generation = parent.generation};
  for (const int rank : members) {
    if (rank == parent.rank) group.rank = group.size();
    group.members.push_back(parent.JobRank(rank));
  }
  return std::optional<Group>(std::move(group));
}

Result<std::unique_ptr<Communicator>> Communicator::Split(std::int64_t color, std::int64_t key,
                                                          Deadline deadline) {
  const Group& parent = impl_->group();
  SplitWish own{color, key, static_cast<std::int64_t>(impl_->CountSplit())};
  std::vector<SplitWish> wishes(parent.members.size());
  static_assert(sizeof(SplitWish) == 3 * sizeof(std::int64_t));
  PERDURE_RETURN_IF_ERROR(
      AllGather({.data = &own, .dtype = DType::kI64, .shape = {3}},
                {.data = wishes.data(), .dtype = DType::kI64, .shape = {size(), 3}}, deadline)
          ->Wait(deadline));
  PERDURE_ASSIGN_OR_RETURN(std::optional<Group> group, SplitGroup(parent, wishes));
  if (!group.has_value()) return std::unique_ptr<Communicator>();
  return ConnectGroup(*std::move(group), impl_->patience(), impl_->parts(), deadline);
}

}  // namespace perdure
