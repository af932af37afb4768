// XXH3, the checksum of every format here (https://xxhash.com, spec in the xxHash repository's
// doc/). Fast enough to run on every byte that passes; against chance, not against an adversary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace perdure {

std::uint64_t Hash64(std::span<const std::byte> bytes);
// 16 lower-case hex digits.
std::string Hex64(std::uint64_t hash);

// XXH3-128 in its canonical (big-endian) form: 32 lower-case hex digits.
std::string Digest(std::span<const std::byte> bytes);
std::string Digest(std::string_view text);

// The same over parts that come one after the other.
class DigestStream {
 public:
  DigestStream();
  ~DigestStream();
  void Add(std::span<const std::byte> bytes);
  void Add(std::string_view text);
  std::string Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace perdure
