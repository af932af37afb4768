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

constexpr DType kDTypes[] = {DType::kF32, DType::kF64,  DType::kI32, DType::kI64,
                             DType::kU8,  DType::kBF16, DType::kF16};

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

TEST_P(ConformanceTest, AllReduceOfEveryDtypeOpAndSize) {
  Run([&](Communicator& world, RankParts& mine) {
    for (const DType dtype : kDTypes) {
      for (const std::size_t count : kCounts) {
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax}) {
          if (count > kArithmeticMax &&
              (op != ReduceOp::kAverage ||
               !std::count(std::begin(kTransportDTypes), std::end(kTransportDTypes), dtype))) {
            continue;
          }
          std::vector<char> bytes = Filled(dtype, mine.rank, count);
          const Status status =
              world.AllReduce(View(dtype, bytes, count), op, Soon())->Wait(Soon());
          ASSERT_TRUE(status.ok()) << status.ToString();
          for (std::size_t i = 0; i < count; ++i) {
            double expected = ValueOf(0, i);
            for (int rank = 1; rank < size(); ++rank) {
              const double value = ValueOf(rank, i);
              if (op == ReduceOp::kMin) expected = std::min(expected, value);
              if (op == ReduceOp::kMax) expected = std::max(expected, value);
              if (op == ReduceOp::kSum || op == ReduceOp::kAverage) expected += value;
            }
            if (op == ReduceOp::kAverage) {
              expected /= size();
              std::vector<char> rounded(8);
              Store(dtype, rounded, 0, expected);  // integers truncate, halves round
              expected = Load(dtype, rounded, 0);
            }
            ASSERT_EQ(Load(dtype, bytes, i), expected)
                << NameOf(dtype) << " x " << count << " " << NameOf(op) << " at " << i;
          }
        }
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
      EXPECT_TRUE(work->Done());
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
    // Nothing of that was an operation.
    EXPECT_TRUE(world.Barrier(Soon())->Wait(Soon()).ok());
    EXPECT_EQ(ProgressOf(world).submitted, 1u);
    EXPECT_TRUE(world.failure().ok());
    (void)mine;
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
