// What every backend must do alike: right results, for all dtypes, sizes and worlds, and the same
// bits twice and on every rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "comm/ranks.h"
#include "comm/reduce.h"

namespace perdure {
namespace {

using std::chrono::seconds;
using test::RankParts;
using test::Soon;
using test::Transport;
using test::World;

// Values that every dtype holds exactly, also summed over four ranks.
double ValueOf(int rank, std::size_t index) {
  return static_cast<double>((index * 7 + static_cast<std::size_t>(rank) * 5) % 13);
}

void Store(DType dtype, std::vector<char>& bytes, std::size_t index, double value) {
  const auto put = [&](auto typed) {
    std::memcpy(bytes.data() + index * sizeof(typed), &typed, sizeof(typed));
  };
  switch (dtype) {
    case DType::kF32:
      return put(static_cast<float>(value));
    case DType::kF64:
      return put(value);
    case DType::kF16:
      return put(FloatToF16(static_cast<float>(value)));
    case DType::kBF16:
      return put(FloatToBf16(static_cast<float>(value)));
    case DType::kI32:
      return put(static_cast<std::int32_t>(value));
    case DType::kI64:
      return put(static_cast<std::int64_t>(value));
    case DType::kI8:
      return put(static_cast<std::int8_t>(value));
    default:
      return put(static_cast<std::uint8_t>(value));
  }
}

double Load(DType dtype, const std::vector<char>& bytes, std::size_t index) {
  const auto get = [&](auto typed) {
    std::memcpy(&typed, bytes.data() + index * sizeof(typed), sizeof(typed));
    return typed;
  };
  switch (dtype) {
    case DType::kF32:
      return get(0.f);
    case DType::kF64:
      return get(0.0);
    case DType::kF16:
      return F16ToFloat(get(std::uint16_t{}));
    case DType::kBF16:
      return Bf16ToFloat(get(std::uint16_t{}));
    case DType::kI32:
      return get(std::int32_t{});
    case DType::kI64:
      return static_cast<double>(get(std::int64_t{}));
    case DType::kI8:
      return get(std::int8_t{});
    default:
      return get(std::uint8_t{});
  }
}

std::vector<char> Filled(DType dtype, int rank, std::size_t count) {
  std::vector<char> bytes(count * static_cast<std::size_t>(BitsOf(dtype) / 8));
  for (std::size_t i = 0; i < count; ++i) Store(dtype, bytes, i, ValueOf(rank, i));
  return bytes;
}

TensorView View(DType dtype, std::vector<char>& bytes, std::size_t count) {
  return {.data = bytes.data(), .dtype = dtype, .shape = {static_cast<std::int64_t>(count)}};
}

constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kI32,  DType::kI64,
                             DType::kI8,  DType::kU8,  DType::kBF16, DType::kF16};

// What `op` makes of `values`, in the precision of the dtype. Products are taken of 1 and 2 alone,
// which every dtype holds.
double Reduced(DType dtype, ReduceOp op, const std::vector<double>& values) {
  double result = values.front();
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (op == ReduceOp::kMin) result = std::min(result, values[i]);
    if (op == ReduceOp::kMax) result = std::max(result, values[i]);
    if (op == ReduceOp::kProduct) result *= values[i];
    if (op == ReduceOp::kSum || op == ReduceOp::kAverage) result += values[i];
  }
  if (op != ReduceOp::kAverage) return result;
  std::vector<char> rounded(8);
  Store(dtype, rounded, 0, result / static_cast<double>(values.size()));
  return Load(dtype, rounded, 0);
}

double GivenTo(ReduceOp op, int rank, std::size_t index) {
  return op == ReduceOp::kProduct
             ? 1.0 + static_cast<double>((index + static_cast<std::size_t>(rank)) % 2)
             : ValueOf(rank, index);
}

std::vector<char> FilledFor(DType dtype, ReduceOp op, int rank, std::size_t count) {
  std::vector<char> bytes(count * static_cast<std::size_t>(BitsOf(dtype) / 8));
  for (std::size_t i = 0; i < count; ++i) Store(dtype, bytes, i, GivenTo(op, rank, i));
  return bytes;
}

// The reduction over `size` ranks, elements `begin` to `begin + count` of what FilledFor gives.
std::vector<char> ReducedFor(DType dtype, ReduceOp op, int size, std::size_t begin,
                             std::size_t count) {
  std::vector<char> bytes(count * static_cast<std::size_t>(BitsOf(dtype) / 8));
  std::vector<double> values(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < count; ++i) {
    for (int rank = 0; rank < size; ++rank) {
      values[static_cast<std::size_t>(rank)] = GivenTo(op, rank, begin + i);
    }
    Store(dtype, bytes, i, Reduced(dtype, op, values));
  }
  return bytes;
}

class ConformanceTest : public testing::TestWithParam<std::tuple<Transport, int>> {
 protected:
  Transport transport() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  void Run(const std::function<void(Communicator&, RankParts&)>& body) {
    World world(transport(), size());
    world.Run(body);
  }
};

// Around the limits of what a frame holds and what a ring divides evenly.
constexpr std::size_t kCounts[] = {0, 1, 7, 1000, 4096, 32769, 200001};
// Above this the arithmetic has been seen, and only the transport is of interest: one operator, one
// dtype of each width up to four bytes.
constexpr std::size_t kArithmeticMax = 5000;
constexpr DType kTransportDTypes[] = {DType::kU8, DType::kBF16, DType::kF32};

constexpr ReduceOp kReduceOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin,
                                   ReduceOp::kMax, ReduceOp::kProduct};

bool WorthIt(DType dtype, ReduceOp op, std::size_t count) {
  return count <= kArithmeticMax ||
         (op == ReduceOp::kAverage &&
          std::count(std::begin(kTransportDTypes), std::end(kTransportDTypes), dtype) > 0);
}

TEST_P(ConformanceTest, AllReduceOfEveryDtypeOpAndSize) {
  Run([&](Communicator& world, RankParts& mine) {
    for (const DType dtype : kDTypes) {
      for (const std::size_t count : kCounts) {
        for (const ReduceOp op : kReduceOps) {
          if (!WorthIt(dtype, op, count)) continue;
          std::vector<char> bytes = FilledFor(dtype, op, mine.rank, count);
          const Status status =
              world.AllReduce(View(dtype, bytes, count), op, Soon())->Wait(Soon());
          ASSERT_TRUE(status.ok()) << status.ToString();
          ASSERT_EQ(bytes, ReducedFor(dtype, op, size(), 0, count))
              << NameOf(dtype) << " x " << count << " " << NameOf(op);
        }
      }
    }
  });
}

TEST_P(ConformanceTest, ReduceToEveryRoot) {
  Run([&](Communicator& world, RankParts& mine) {
    for (const DType dtype : kDTypes) {
      for (const std::size_t count : kCounts) {
        for (const ReduceOp op : kReduceOps) {
          if (!WorthIt(dtype, op, count)) continue;
          const int root = static_cast<int>(count) % size();
          std::vector<char> bytes = FilledFor(dtype, op, mine.rank, count);
          const Status status =
              world.Reduce(View(dtype, bytes, count), op, Rank(root), Soon())->Wait(Soon());
          ASSERT_TRUE(status.ok()) << status.ToString();
          if (mine.rank != root) continue;
          ASSERT_EQ(bytes, ReducedFor(dtype, op, size(), 0, count))
              << NameOf(dtype) << " x " << count << " " << NameOf(op) << " to " << root;
        }
      }
    }
  });
}

TEST_P(ConformanceTest, ReduceScatterGivesEachRankItsBlockAndLeavesTheInput) {
  Run([&](Communicator& world, RankParts& mine) {
    for (const DType dtype : kDTypes) {
      for (const std::size_t count : kCounts) {
        for (const ReduceOp op : kReduceOps) {
          if (!WorthIt(dtype, op, count)) continue;
          const std::size_t whole = count * static_cast<std::size_t>(size());
          const std::vector<char> given = FilledFor(dtype, op, mine.rank, whole);
          const std::vector<char> expected =
              ReducedFor(dtype, op, size(), count * static_cast<std::size_t>(mine.rank), count);
          std::vector<char> input = given;
          std::vector<char> output(expected.size());
          const auto reduce_scatter = [&](const TensorView& to) {
            return world.ReduceScatter(View(dtype, input, whole), to, op, Soon())->Wait(Soon());
          };
          Status status = reduce_scatter(View(dtype, output, count));
          ASSERT_TRUE(status.ok()) << status.ToString();
          ASSERT_EQ(output, expected) << NameOf(dtype) << " x " << count << " " << NameOf(op);
          ASSERT_EQ(input, given);
          // Into its own block.
          const std::size_t own = static_cast<std::size_t>(mine.rank) * expected.size();
          TensorView block = View(dtype, input, count);
          block.data = input.data() + own;
          status = reduce_scatter(block);
          ASSERT_TRUE(status.ok()) << status.ToString();
          ASSERT_TRUE(std::equal(expected.begin(), expected.end(),
                                 input.begin() + static_cast<std::ptrdiff_t>(own)));
        }
      }
    }
  });
}

// More than one piece of the ring's scratch.
TEST_P(ConformanceTest, ReduceScatterOfLargeBlocks) {
  if (size() > 3) return;  // the memory of more ranks shows nothing else
  Run([&](Communicator& world, RankParts& mine) {
    constexpr std::size_t kCount = (17 << 20) / 4 + 3;
    std::vector<std::int32_t> input(kCount * static_cast<std::size_t>(size()));
    for (std::size_t i = 0; i < input.size(); ++i) {
      input[i] = static_cast<std::int32_t>(i) * (mine.rank + 1);
    }
    std::vector<std::int32_t> output(kCount);
    const Status status = world
                              .ReduceScatter({.data = input.data(),
                                              .dtype = DType::kI32,
                                              .shape = {size(), static_cast<std::int64_t>(kCount)}},
                                             {.data = output.data(),
                                              .dtype = DType::kI32,
                                              .shape = {static_cast<std::int64_t>(kCount)}},
                                             ReduceOp::kSum, Soon())
                              ->Wait(Soon());
    ASSERT_TRUE(status.ok()) << status.ToString();
    const std::int64_t factor = size() * (size() + 1) / 2;
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto index =
          static_cast<std::int64_t>(i + kCount * static_cast<std::size_t>(mine.rank));
      ASSERT_EQ(output[i], static_cast<std::int32_t>(index * factor)) << i;
    }
  });
}

TEST_P(ConformanceTest, AllToAllTransposesTheBlocks) {
  Run([&](Communicator& world, RankParts& mine) {
    for (const std::size_t count : kCounts) {
      const std::size_t whole = count * static_cast<std::size_t>(size());
      // Block `to` of rank `from`.
      const auto block = [&](int from, int to) {
        return Filled(DType::kI32, from * size() + to, count);
      };
      std::vector<char> input;
      std::vector<char> expected;
      for (int peer = 0; peer < size(); ++peer) {
        const std::vector<char> given = block(mine.rank, peer);
        const std::vector<char> got = block(peer, mine.rank);
        input.insert(input.end(), given.begin(), given.end());
        expected.insert(expected.end(), got.begin(), got.end());
      }
      std::vector<char> output(input.size());
      const Status status =
          world.AllToAll(View(DType::kI32, input, whole), View(DType::kI32, output, whole), Soon())
              ->Wait(Soon());
      ASSERT_TRUE(status.ok()) << status.ToString();
      ASSERT_EQ(output, expected) << count;
    }
  });
}

TEST_P(ConformanceTest, WhatIsSentAroundTheRingArrives) {
  if (size() == 1) return;  // there is no other rank to send to
  Run([&](Communicator& world, RankParts& mine) {
    const Rank right((mine.rank + 1) % size());
    const int left = (mine.rank + size() - 1) % size();
    for (int repeat = 0; repeat < 3; ++repeat) {
      for (const std::size_t count : kCounts) {
        std::vector<char> given = Filled(DType::kI32, mine.rank, count);
        std::vector<char> got(given.size());
        const auto send = [&] {
          return world.Send(View(DType::kI32, given, count), right, Soon());
        };
        const auto recv = [&] {
          return world.Recv(View(DType::kI32, got, count), Rank(left), Soon());
        };
        // Rank 0 sends first, the others pass on.
        const auto first = mine.rank == 0 ? send() : recv();
        const auto second = mine.rank == 0 ? recv() : send();
        for (const auto& work : {first, second}) {
          const Status status = work->Wait(Soon());
          ASSERT_TRUE(status.ok()) << status.ToString();
        }
        ASSERT_EQ(got, Filled(DType::kI32, left, count)) << count;
        // In between a collective, which counts by itself.
        ASSERT_TRUE(world.Barrier(Soon())->Wait(Soon()).ok());
      }
    }
    EXPECT_EQ(ProgressOf(world).completed, 3 * std::size(kCounts));
  });
}

// Of a dtype that nothing here computes with, only the bytes matter.
TEST_P(ConformanceTest, EveryDtypeOfWholeBytesMoves) {
  Run([&](Communicator& world, RankParts& mine) {
    for (const DType dtype :
         {DType::kBool, DType::kF8E4M3, DType::kU16, DType::kU64, DType::kC64}) {
      const auto width = static_cast<std::size_t>(BitsOf(dtype) / 8);
      std::vector<char> memory(5 * width + 1);
      // Not even aligned.
      const TensorView view{.data = memory.data() + 1, .dtype = dtype, .shape = {5}};
      if (mine.rank == 0) std::iota(memory.begin(), memory.end(), static_cast<char>(-3));
      const Status status = world.Broadcast(view, Rank(0), Soon())->Wait(Soon());
      ASSERT_TRUE(status.ok()) << status.ToString();
      for (std::size_t i = 1; i < memory.size(); ++i) {
        ASSERT_EQ(memory[i], static_cast<char>(static_cast<int>(i) - 3)) << NameOf(dtype);
      }
    }
  });
}

TEST_P(ConformanceTest, BroadcastFromEveryRoot) {
  Run([&](Communicator& world, RankParts& mine) {
    for (int root = 0; root < size(); ++root) {
      for (const std::size_t count : kCounts) {
        std::vector<char> bytes = Filled(DType::kI32, mine.rank, count);
        const Status status =
            world.Broadcast(View(DType::kI32, bytes, count), Rank(root), Soon())->Wait(Soon());
        ASSERT_TRUE(status.ok()) << status.ToString();
        ASSERT_EQ(bytes, Filled(DType::kI32, root, count)) << count << " from " << root;
      }
    }
  });
}

TEST_P(ConformanceTest, AllGatherInRankOrder) {
  Run([&](Communicator& world, RankParts& mine) {
    for (const std::size_t count : kCounts) {
      std::vector<char> input = Filled(DType::kBF16, mine.rank, count);
      const std::size_t total = count * static_cast<std::size_t>(size());
      std::vector<char> output(total * 2);
      const Status status = world
                                .AllGather(View(DType::kBF16, input, count),
                                           View(DType::kBF16, output, total), Soon())
                                ->Wait(Soon());
      ASSERT_TRUE(status.ok()) << status.ToString();
      std::vector<char> expected;
      for (int rank = 0; rank < size(); ++rank) {
        const std::vector<char> part = Filled(DType::kBF16, rank, count);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      ASSERT_EQ(output, expected) << count;
    }
  });
}

TEST_P(ConformanceTest, BarrierHoldsEveryoneUntilTheLastHasCome) {
  std::atomic<int> arrived{0};
  Run([&](Communicator& world, RankParts&) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      ASSERT_TRUE(world.Barrier(Soon())->Wait(Soon()).ok());
      ASSERT_GE(arrived.load(), round * size());
    }
  });
}

TEST_P(ConformanceTest, SameBitsTwiceAndOnEveryRank) {
  std::mutex mutex;
  std::map<std::size_t, std::vector<std::vector<char>>> results;
  for (int repeat = 0; repeat < 2; ++repeat) {
    Run([&](Communicator& world, RankParts& mine) {
      for (const std::size_t count : {1001u, 150001u}) {
        // Sums whose bits depend on the order of the additions.
        std::vector<float> values(count);
        std::uint32_t state = static_cast<std::uint32_t>(mine.rank) + 1;
        for (float& value : values) {
          state = state * 1664525u + 1013904223u;
          value = static_cast<float>(state) / 1e3f * (state % 2 == 0 ? 1.f : -1e-4f);
        }
        const TensorView view{.data = values.data(),
                              .dtype = DType::kF32,
                              .shape = {static_cast<std::int64_t>(count)}};
        ASSERT_TRUE(world.AllReduce(view, ReduceOp::kSum, Soon())->Wait(Soon()).ok());
        std::vector<char> bytes(count * 4);
        std::memcpy(bytes.data(), values.data(), bytes.size());
        std::lock_guard<std::mutex> lock(mutex);
        results[count].push_back(std::move(bytes));
      }
    });
  }
  for (const auto& [count, all] : results) {
    for (const std::vector<char>& one : all) EXPECT_EQ(one, all.front()) << count;
  }
}

TEST_P(ConformanceTest, ManyOperationsInFlightRunInOrder) {
  Run([&](Communicator& world, RankParts& mine) {
    constexpr std::size_t kOperations = 100;
    std::vector<std::int64_t> values(kOperations);
    std::vector<std::shared_ptr<Work>> works;
    for (std::size_t i = 0; i < kOperations; ++i) {
      values[i] = static_cast<std::int64_t>(i) + mine.rank;
      works.push_back(world.AllReduce({.data = &values[i], .dtype = DType::kI64, .shape = {}},
                                      ReduceOp::kMax, Soon()));
    }
    for (std::size_t i = 0; i < kOperations; ++i) {
      ASSERT_TRUE(works[i]->Wait(Soon()).ok());
      EXPECT_EQ(values[i], static_cast<std::int64_t>(i) + size() - 1);
    }
    const CommProgress progress = ProgressOf(world);
    EXPECT_EQ(progress.submitted, kOperations);
    EXPECT_EQ(progress.started, kOperations);
    EXPECT_EQ(progress.completed, kOperations);
    const std::vector<FlightRecord> records = mine.recorder.Snapshot();
    ASSERT_EQ(records.size(), kOperations);
    EXPECT_EQ(records.back().sequence, kOperations);
    EXPECT_EQ(records.back().verb, Verb::kAllReduce);
    EXPECT_LE(records.back().submitted, records.back().started);
    EXPECT_LE(records.back().started, records.back().completed);
    EXPECT_FALSE(records.back().failed);
  });
}

TEST_P(ConformanceTest, ABadArgumentIsToldAndHarmsNothing) {
  Run([&](Communicator& world, RankParts& mine) {
    std::vector<char> bytes(64);
    const auto code = [](const std::shared_ptr<Work>& work) {
      EXPECT_TRUE(work->Test());
      return work->Wait(Soon()).code();
    };
    TensorView view = View(DType::kF32, bytes, 4);
    view.dtype = DType::kC64;
    EXPECT_EQ(code(world.AllReduce(view, ReduceOp::kSum, Soon())), Code::kInvalidArgument);
    view = View(DType::kF32, bytes, 4);
    view.device = DeviceKind::kCuda;
    EXPECT_EQ(code(world.AllReduce(view, ReduceOp::kSum, Soon())), Code::kInvalidArgument);
    view = View(DType::kF32, bytes, 4);
    view.shape = {2, 2};
    view.strides = {1, 2};
    EXPECT_EQ(code(world.AllReduce(view, ReduceOp::kSum, Soon())), Code::kInvalidArgument);
    view = View(DType::kF32, bytes, 4);
    view.data = bytes.data() + 1;
    EXPECT_EQ(code(world.AllReduce(view, ReduceOp::kSum, Soon())), Code::kInvalidArgument);
    view = View(DType::kF32, bytes, 4);
    EXPECT_EQ(code(world.Broadcast(view, Rank(size()), Soon())), Code::kInvalidArgument);
    TensorView output = View(DType::kF32, bytes, static_cast<std::size_t>(size()) * 4 + 1);
    EXPECT_EQ(code(world.AllGather(view, output, Soon())), Code::kInvalidArgument);
    EXPECT_EQ(code(world.ReduceScatter(output, view, ReduceOp::kSum, Soon())),
              Code::kInvalidArgument);
    if (size() > 1) {
      EXPECT_EQ(code(world.AllToAll(output, output, Soon())), Code::kInvalidArgument);
    }
    EXPECT_EQ(code(world.Reduce(view, ReduceOp::kSum, Rank(-1), Soon())), Code::kInvalidArgument);
    EXPECT_EQ(code(world.Send(view, Rank(size()), Soon())), Code::kInvalidArgument);
    EXPECT_EQ(code(world.Send(view, Rank(mine.rank), Soon())), Code::kInvalidArgument);
    EXPECT_EQ(code(world.Recv(view, Rank(mine.rank), Soon())), Code::kInvalidArgument);
    view.dtype = DType::kF4;
    EXPECT_EQ(code(world.Broadcast(view, Rank(0), Soon())), Code::kInvalidArgument);
    // Nothing of that was an operation.
    EXPECT_TRUE(world.Barrier(Soon())->Wait(Soon()).ok());
    EXPECT_EQ(ProgressOf(world).submitted, 1u);
    EXPECT_TRUE(world.failure().ok());
  });
}

std::vector<std::tuple<Transport, int>> Worlds() {
  std::vector<std::tuple<Transport, int>> worlds;
  for (const Transport transport : test::Transports()) {
    for (const int size : {1, 2, 3, 4, 7}) worlds.emplace_back(transport, size);
  }
  return worlds;
}

INSTANTIATE_TEST_SUITE_P(Backends, ConformanceTest, testing::ValuesIn(Worlds()),
                         [](const auto& test) {
                           return std::string(test::NameOf(std::get<0>(test.param))) +
                                  std::to_string(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace perdure
