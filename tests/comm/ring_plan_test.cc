#include "comm/backends/gloo/ring_plan.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace perdure {
namespace {

constexpr std::size_t kSegment = 1024;

// Plays the plans of all ranks against each other with one counter per byte.
TEST(RingPlanTest, EveryByteMeetsEveryRankOnceAndTravelsToAll) {
  for (const int size : {2, 3, 4, 5, 8}) {
    for (const std::uint64_t count : {1u, 16u, 17u, 1000u, 5000u}) {
      std::vector<AllReducePlan> plans;
      for (int rank = 0; rank < size; ++rank) plans.emplace_back(count, 4, size, rank, kSegment);
      const std::size_t bytes = count * 4;
      // held[r][b]: which ranks' parts are in rank r's byte b, as a bit set.
      std::vector<std::vector<unsigned>> held;
      for (int rank = 0; rank < size; ++rank) held.emplace_back(bytes, 1u << rank);
      const unsigned all = (1u << size) - 1;
      for (int m = 0; m < plans[0].messages(); ++m) {
        const auto before = held;
        for (int rank = 0; rank < size; ++rank) {
          const int left = (rank + size - 1) % size;
          const auto& plan = plans[static_cast<std::size_t>(rank)];
          const Slice slice = plan.Received(m);
          ASSERT_EQ(slice, plans[static_cast<std::size_t>(left)].Sent(m));
          ASSERT_LE(slice.offset + slice.bytes, bytes);
          ASSERT_LE(slice.bytes, plan.segment_bytes());
          ASSERT_EQ(slice.bytes % 4, 0u);
          for (std::size_t b = slice.offset; b < slice.offset + slice.bytes; ++b) {
            unsigned& mine = held[static_cast<std::size_t>(rank)][b];
            const unsigned incoming = before[static_cast<std::size_t>(left)][b];
            if (plan.Reduces(m)) {
              ASSERT_EQ(mine & incoming, 0u);
              mine |= incoming;
              ASSERT_EQ(mine == all, plan.Completes(m));
            } else {
              ASSERT_EQ(incoming, all);
              mine = incoming;
            }
          }
        }
      }
      for (const auto& one : held) {
        for (const unsigned parts : one) ASSERT_EQ(parts, all) << size << " ranks, " << count;
      }
    }
  }
}

TEST(RingPlanTest, EveryBlockReachesEveryRank) {
  for (const int size : {2, 3, 5}) {
    for (const std::size_t bytes : {1u, 1000u, 5000u}) {
      std::vector<AllGatherPlan> plans;
      std::vector<std::vector<bool>> held;
      for (int rank = 0; rank < size; ++rank) {
        plans.emplace_back(bytes, size, rank, kSegment);
        held.emplace_back(bytes * static_cast<std::size_t>(size), false);
        for (std::size_t b = 0; b < bytes; ++b) {
          held.back()[static_cast<std::size_t>(rank) * bytes + b] = true;
        }
      }
      for (int m = 0; m < plans[0].messages(); ++m) {
        const auto before = held;
        for (int rank = 0; rank < size; ++rank) {
          const int left = (rank + size - 1) % size;
          const Slice slice = plans[static_cast<std::size_t>(rank)].Received(m);
          ASSERT_EQ(slice, plans[static_cast<std::size_t>(left)].Sent(m));
          for (std::size_t b = slice.offset; b < slice.offset + slice.bytes; ++b) {
            ASSERT_TRUE(before[static_cast<std::size_t>(left)][b]);
            held[static_cast<std::size_t>(rank)][b] = true;
          }
        }
      }
      for (const auto& one : held) {
        for (const bool there : one) ASSERT_TRUE(there);
      }
    }
  }
}

}  // namespace
}  // namespace perdure
