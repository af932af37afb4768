// A pseudo-random permutation of [0, size), computed and never stored.
//
// A Feistel network is a bijection of the k-bit numbers for any round function (M. Luby, C.
// Rackoff, "How to construct pseudorandom permutations from pseudorandom functions", SIAM J.
// Comput. 17(2), 1988); here with halves of k/2 bits, the larger one k - k/2, changed in turn. k is
// the smallest with 2^k >= size. Cycle walking (J. Black, P. Rogaway, "Ciphers with arbitrary
// finite domains", CT-RSA 2002, method 2) restricts it to [0, size): apply it until the value is
// inside. Fewer than two applications on average, since 2^k < 2 * size.
//
// For shuffling, not for secrets.
#pragma once

#include <array>
#include <cstdint>

namespace perdure {

// Mixes 64 bits: the finalizer of SplitMix64 (G. Steele, D. Lea, C. Flood, "Fast splittable
// pseudorandom number generators", OOPSLA 2014). A bijection.
constexpr std::uint64_t Mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Permutation {
 public:
  // `size` at least 1.
  Permutation(std::int64_t size, std::uint64_t seed);

  // `place` in [0, size).
  std::int64_t operator()(std::int64_t place) const;

 private:
  static constexpr int kRounds = 8;

  std::uint64_t Encrypt(std::uint64_t value) const;

  std::uint64_t size_;
  int right_bits_;
  std::uint64_t left_mask_;
  std::uint64_t right_mask_;
  std::array<std::uint64_t, kRounds> keys_;
};

}  // namespace perdure
