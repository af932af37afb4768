#include "data/permutation.h"

#include <bit>

#include "base/check.h"

namespace perdure {

Permutation::Permutation(std::int64_t size, std::uint64_t seed)
    : size_(static_cast<std::uint64_t>(size)) {
  PERDURE_CHECK(size >= 1, "a permutation has at least one element");
  const int bits = std::bit_width(size_ - 1);  // at most 63
  const int left_bits = bits / 2;
  right_bits_ = bits - left_bits;  // at most 32
  left_mask_ = (std::uint64_t{1} << left_bits) - 1;
  right_mask_ = (std::uint64_t{1} << right_bits_) - 1;
  std::uint64_t state = seed;
  for (std::uint64_t& key : keys_) {
    state = Mix64(state);
    key = state;
  }
}

std::uint64_t Permutation::Encrypt(std::uint64_t value) const {
  std::uint64_t left = value >> right_bits_;
  std::uint64_t right = value & right_mask_;
  for (int round = 0; round < kRounds; round += 2) {
    right ^= Mix64(left ^ keys_[round]) & right_mask_;
    left ^= Mix64(right ^ keys_[round + 1]) & left_mask_;
  }
  return (left << right_bits_) | right;
}

std::int64_t Permutation::operator()(std::int64_t place) const {
  std::uint64_t value = static_cast<std::uint64_t>(place);
  PERDURE_CHECK(value < size_, "place outside the permutation");
  // Ends: the walk follows a cycle of a bijection, and the cycle holds `place`, which is inside.
  do {
    value = Encrypt(value);
  } while (value >= size_);
  return static_cast<std::int64_t>(value);
}

}  // namespace perdure
