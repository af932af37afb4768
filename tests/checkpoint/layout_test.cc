#include "checkpoint/layout.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

#include "base/posix.h"

namespace perdure {
namespace {

Piece Whole(const std::string& name, Shape shape, DType dtype = DType::kF32) {
  return {name, false, dtype, shape, Shape(shape.size(), 0), shape};
}

Piece Part(const std::string& name, Shape global, Shape offset, Shape shape) {
  return {name, false, DType::kF32, std::move(global), std::move(offset), std::move(shape)};
}

std::int64_t BytesOf(const Structure& structure, const RankPlan& plan) {
  std::int64_t bytes = 0;
  for (const WriteItem& item : plan.items) {
    Shape shape = structure[item.piece].shape;
    if (!item.whole) shape[0] = item.row_end - item.row_begin;
    bytes += *ByteCount(structure[item.piece].dtype, shape);
  }
  return bytes;
}

TEST(PlanWriteTest, CopiesAreWrittenOnceAndSharedOut) {
  Structure structure;
  std::int64_t total = 0;
  for (int i = 1; i <= 40; ++i) {
    structure.push_back(Whole(fmt::format("t{}", i), {i, 100}));
    total += i * 400;
  }
  const std::vector<Structure> ranks(4, structure);
  for (const std::int64_t split_bytes : {std::int64_t{1} << 40, std::int64_t{4000}}) {
    const auto plan = PlanWrite(ranks, split_bytes);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    std::int64_t sum = 0;
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const std::int64_t bytes = BytesOf(ranks[rank], plan->ranks[rank]);
      sum += bytes;
      EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(total) / 4, 4000.0);
      ASSERT_EQ(plan->ranks[rank].shared.size(), 1u);
      EXPECT_EQ(plan->ranks[rank].shared[0].pieces.size(), 40u);
    }
    EXPECT_EQ(sum, total);
    EXPECT_EQ(plan->holders, (std::vector<std::vector<int>>{{0, 1, 2, 3}}));
  }
}

TEST(PlanWriteTest, UnevenEmptyAndScalarPieces) {
  // 3 rows over 4 ranks: the last one has none.
  std::vector<Structure> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    const std::int64_t rows = rank < 3 ? 1 : 0;
    ranks.push_back({Part("shard", {3, 2}, {std::min(rank, 3), 0}, {rows, 2}),
                     Whole("empty", {0, 7}), Whole("scalar", {})});
  }
  const auto plan = PlanWrite(ranks, 1);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  int empty = 0;
  int scalar = 0;
  int shard = 0;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    for (const WriteItem& item : plan->ranks[rank].items) {
      const std::string& name = ranks[rank][item.piece].name;
      empty += name == "empty" ? 1 : 0;
      scalar += name == "scalar" ? 1 : 0;
      shard += name == "shard" ? 1 : 0;
    }
  }
  EXPECT_EQ(empty, 1);
  EXPECT_EQ(scalar, 1);
  EXPECT_EQ(shard, 3);
  EXPECT_EQ(plan->tensors.at("shard").shape, (Shape{3, 2}));
}

TEST(PlanWriteTest, SaysWhatDoesNotFitTogether) {
  const auto message = [](const std::vector<Structure>& ranks) {
    const auto plan = PlanWrite(ranks, kSplitBytes);
    EXPECT_EQ(plan.status().code(), Code::kInvalidArgument);
    return plan.status().message();
  };
  const std::string types = message(
      {{Whole("a", {2}), Whole("b", {2})}, {Whole("a", {2}, DType::kBF16), Whole("b", {3})}});
  EXPECT_NE(types.find("a is F32 [2] on rank 0 and BF16 [2] on rank 1"), std::string::npos);
  EXPECT_NE(types.find("b is F32 [2] on rank 0 and F32 [3] on rank 1"), std::string::npos);
  EXPECT_NE(message({{Part("a", {4}, {0}, {1})}, {Part("a", {4}, {2}, {2})}})
                .find("together hold 3 of 4"),
            std::string::npos);
  // Overlaps fill no hole.
  EXPECT_NE(message({{Part("a", {6}, {0}, {3})}, {Part("a", {6}, {2}, {2})}})
                .find("together hold 4 of 6"),
            std::string::npos);
}

TEST(PlanWriteTest, TravelsAsText) {
  const Structure structure = {Whole("a \"q\"", {600, 10}),
                               Part("b", {4, 2}, {2, 0}, {2, 2}),
                               {"blob", true, DType::kU8, {5}, {0}, {5}}};
  EXPECT_EQ(*ParseStructure(FormatStructure(structure), "s"), structure);
  Structure other = structure;
  other[1].offset = {0, 0};
  const auto plan = PlanWrite({structure, other}, 100);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  for (const RankPlan& rank : plan->ranks) {
    EXPECT_EQ(*ParseRankPlan(FormatRankPlan(rank), structure, "p"), rank);
  }
  EXPECT_FALSE(ParseRankPlan("{\"items\":[[3]],\"shared\":[]}", structure, "p").ok());
  EXPECT_FALSE(ParseRankPlan("{\"items\":[[0,1,601]],\"shared\":[]}", structure, "p").ok());
  EXPECT_FALSE(ParseRankPlan("[]", structure, "p").ok());
}

TEST(PlanWriteTest, WhatOverlapsIsWrittenWholeAndCompared) {
  // 0 and 1 hold the same rows, 2 holds some of them and others.
  const std::vector<Structure> ranks = {{Part("a", {6, 2}, {0, 0}, {4, 2})},
                                        {Part("a", {6, 2}, {0, 0}, {4, 2})},
                                        {Part("a", {6, 2}, {3, 0}, {3, 2})}};
  const auto plan = PlanWrite(ranks, kSplitBytes);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->ranks[0].items.size() + plan->ranks[1].items.size(), 1u);
  EXPECT_EQ(plan->ranks[2].items.size(), 1u);
  EXPECT_EQ(plan->holders, (std::vector<std::vector<int>>{{0, 2}, {0, 1}}));
  const SharedPiece rim{0, Box{{3, 0}, {1, 2}}};
  EXPECT_EQ(plan->ranks[2].shared, (std::vector<SharedPieces>{{0, {rim}}}));
  EXPECT_EQ(plan->ranks[0].shared, (std::vector<SharedPieces>{{0, {rim}}, {1, {{0, {}}}}}));
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(*ParseRankPlan(FormatRankPlan(plan->ranks[rank]), ranks[rank], "p"),
              plan->ranks[rank]);
  }
  EXPECT_FALSE(
      ParseRankPlan("{\"items\":[],\"shared\":[[0,[0,[2,0],[1,2]]]]}", ranks[2], "p").ok());
}

TEST(BoxTest, WithoutLeavesTheRestOnce) {
  const Box box{{1, 2, 0}, {4, 3, 2}};
  const Box hole{{2, 2, 1}, {2, 2, 1}};
  std::int64_t rest = 0;
  Coverage coverage({6, 6, 6});
  for (const Box& piece : Without(box, hole)) {
    EXPECT_GT(VolumeOf(piece), 0);
    EXPECT_EQ(VolumeOf(Intersect(piece, hole)), 0);
    EXPECT_EQ(Intersect(piece, box), piece);
    rest += VolumeOf(piece);
    coverage.Add(piece);
  }
  EXPECT_EQ(rest, VolumeOf(box) - VolumeOf(hole));
  EXPECT_EQ(coverage.elements(), rest);
  coverage.Add(box);
  coverage.Add(hole);
  EXPECT_EQ(coverage.elements(), VolumeOf(box));
  EXPECT_TRUE(Without(box, box).empty());
  EXPECT_TRUE(Without(Box{}, Box{}).empty());
}

// Cuts every extent at random places; boxes of one cut are disjoint and fill the tensor.
std::vector<Box> RandomCut(const Shape& global, std::mt19937_64& random) {
  std::vector<Box> boxes = {{Shape(global.size(), 0), global}};
  for (std::size_t axis = 0; axis < global.size(); ++axis) {
    std::vector<Box> cut;
    const auto at =
        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(global[axis] + 1));
    for (const Box& box : boxes) {
      Box low = box;
      Box high = box;
      low.shape[axis] = at;
      high.offset[axis] = at;
      high.shape[axis] = global[axis] - at;
      cut.push_back(low);
      cut.push_back(high);
    }
    boxes = std::move(cut);
  }
  return boxes;
}

std::vector<std::uint16_t> Extract(const std::vector<std::uint16_t>& global, const Shape& shape,
                                   const Box& box) {
  std::vector<std::uint16_t> values;
  for (std::size_t i = 0; i < global.size(); ++i) {
    std::size_t rest = i;
    bool inside = true;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      const auto at = static_cast<std::int64_t>(rest % static_cast<std::size_t>(shape[axis]));
      rest /= static_cast<std::size_t>(shape[axis]);
      inside = inside && at >= box.offset[axis] && at < box.offset[axis] + box.shape[axis];
    }
    if (inside) values.push_back(global[i]);
  }
  return values;
}

TEST(RunsTest, AnyLayoutComesTogetherFromAnyOther) {
  const std::uint64_t seed = RandomU64();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    Shape shape;
    for (std::uint64_t n = random() % 4; n > 0; --n) {
      shape.push_back(1 + static_cast<std::int64_t>(random() % 6));
    }
    std::vector<std::uint16_t> global(static_cast<std::size_t>(*ElementCount(shape)));
    std::iota(global.begin(), global.end(), std::uint16_t{0});
    const std::vector<Box> saved = RandomCut(shape, random);
    for (const Box& target : RandomCut(shape, random)) {
      std::vector<std::uint16_t> memory(static_cast<std::size_t>(VolumeOf(target)), 0xffff);
      std::int64_t moved = 0;
      for (const Box& source : saved) {
        const std::vector<std::uint16_t> bytes = Extract(global, shape, source);
        const auto runs = RunsOf(DType::kU16, source, target, Intersect(source, target));
        ASSERT_TRUE(runs.ok());
        for (const ByteRun& run : *runs) {
          ASSERT_LE(run.source + run.bytes, static_cast<std::int64_t>(bytes.size() * 2));
          ASSERT_LE(run.target + run.bytes, static_cast<std::int64_t>(memory.size() * 2));
          std::memcpy(reinterpret_cast<char*>(memory.data()) + run.target,
                      reinterpret_cast<const char*>(bytes.data()) + run.source,
                      static_cast<std::size_t>(run.bytes));
          moved += run.bytes;
        }
      }
      ASSERT_EQ(moved, VolumeOf(target) * 2);
      ASSERT_EQ(memory, Extract(global, shape, target));
    }
  }
}

TEST(RunsTest, WholeRowsAreOneRun) {
  const Box source{{2, 0}, {4, 5}};
  const auto runs = RunsOf(DType::kF32, source, {{0, 0}, {10, 5}}, source);
  ASSERT_TRUE(runs.ok());
  EXPECT_EQ(*runs, (std::vector<ByteRun>{{0, 40, 80}}));
  // Half a byte cannot be moved.
  EXPECT_EQ(
      RunsOf(DType::kF4, {{0, 0}, {2, 2}}, {{0, 1}, {2, 1}}, {{0, 1}, {2, 1}}).status().code(),
      Code::kUnimplemented);
}

}  // namespace
}  // namespace perdure
