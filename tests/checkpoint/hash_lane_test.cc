#include "checkpoint/hash_lane.h"

#include <gtest/gtest.h>

#include <random>

#include "checkpoint/hash.h"

namespace perdure {
namespace {

std::vector<std::byte> SomeBytes(std::size_t count) {
  std::mt19937_64 random(count);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(HashLane, ManySmallAndFewLargeOnes) {
  const std::vector<std::byte> bytes = SomeBytes(3 << 20);
  const std::span<const std::byte> all = bytes;
  HashLane lane;
  for (int round = 0; round < 2; ++round) {
    std::vector<std::span<const std::byte>> parts;
    for (std::size_t i = 0; i < 3 * HashLane::kBatchItemsMax; ++i) {
      parts.push_back(all.subspan(i, i % 100));
    }
    for (std::size_t i = 0; i < 30; ++i) parts.push_back(all.subspan(i));
    parts.push_back({});
    std::vector<std::uint64_t> hashes(parts.size(), 0);
    for (std::size_t i = 0; i < parts.size(); ++i) lane.Add(parts[i], &hashes[i]);
    lane.Finish();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      ASSERT_EQ(hashes[i], Hash64(parts[i])) << i;
    }
  }
}

TEST(HashLane, IsLeftInTheMiddle) {
  const std::vector<std::byte> bytes = SomeBytes(4 << 20);
  for (int i = 0; i < 20; ++i) {
    std::vector<std::uint64_t> hashes(static_cast<std::size_t>(i));
    HashLane lane;
    for (std::uint64_t& hash : hashes) lane.Add(bytes, &hash);
  }
}

}  // namespace
}  // namespace perdure
