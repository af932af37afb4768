// Strong ids: a Rank is not a Step is not a Generation, and the compiler knows.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

namespace perdure {

template <class Tag>
class StrongId {
 public:
  constexpr StrongId() = default;
  constexpr explicit StrongId(std::int64_t value) : value_(value) {}
  constexpr std::int64_t value() const { return value_; }
  constexpr StrongId Next() const { return StrongId(value_ + 1); }

  friend constexpr bool operator==(StrongId a, StrongId b) { return a.value_ == b.value_; }
  friend constexpr bool operator!=(StrongId a, StrongId b) { return a.value_ != b.value_; }
  friend constexpr bool operator<(StrongId a, StrongId b) { return a.value_ < b.value_; }
  friend constexpr bool operator>(StrongId a, StrongId b) { return a.value_ > b.value_; }
  friend constexpr bool operator<=(StrongId a, StrongId b) { return a.value_ <= b.value_; }
  friend constexpr bool operator>=(StrongId a, StrongId b) { return a.value_ >= b.value_; }
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << id.value_; }

 private:
  std::int64_t value_ = 0;
};

// One training process, 0..world-1.
using Rank = StrongId<struct RankTag>;
// One optimizer step of the training loop, from 0. A checkpoint "of step s" holds the state after
// step s; a run that restores it begins with step s + 1.
using Step = StrongId<struct StepTag>;
// One launch of all ranks together, from 1. Each recovery starts the next; it fences the one
// before.
using Generation = StrongId<struct GenerationTag>;

template <class Tag>
std::string ToString(StrongId<Tag> id) {
  return std::to_string(id.value());
}

}  // namespace perdure

template <class Tag>
struct std::hash<perdure::StrongId<Tag>> {
  std::size_t operator()(perdure::StrongId<Tag> id) const noexcept {
    return std::hash<std::int64_t>()(id.value());
  }
};
