#include "checkpoint/read_plan.h"

#include <gtest/gtest.h>

#include "checkpoint/names.h"

namespace perdure {
namespace {

ShardPiece Saved(const std::string& name, Shape global, Shape offset, Shape shape) {
  ShardPiece piece;
  piece.name = name;
  piece.dtype = DType::kU8;
  piece.global_shape = std::move(global);
  piece.offset = std::move(offset);
  piece.shape = std::move(shape);
  return piece;
}

Piece Want(const std::string& name, Shape global, Shape offset, Shape shape) {
  return {name, false, DType::kU8, std::move(global), std::move(offset), std::move(shape)};
}

ShardIndex Shard(std::vector<ShardPiece> pieces) {
  ShardIndex index;
  index.pieces = std::move(pieces);
  EXPECT_TRUE(LayOut(index.pieces).ok());
  return index;
}

TEST(ReadPlannerTest, StopsWhenNothingIsMissing) {
  const Structure wanted = {Want("w", {8, 2}, {2, 0}, {3, 2}), Want("empty", {0}, {0}, {0}),
                            Want("scalar", {}, {}, {})};
  ReadPlanner planner(wanted);
  EXPECT_FALSE(planner.complete());
  auto reads = planner.Next(
      Shard({Saved("w", {8, 2}, {0, 0}, {4, 2}), Saved("scalar", {}, {}, {})}), "first");
  ASSERT_TRUE(reads.ok());
  EXPECT_EQ(*reads, (std::vector<PieceRead>{{0, 2, {{{}, {}}}}, {1, 0, {{{2, 0}, {2, 2}}}}}));
  EXPECT_FALSE(planner.complete());
  EXPECT_NE(planner.Missing("here").message().find("tensor w: 2 of its elements"),
            std::string::npos);
  // A file with nothing of it costs a header.
  EXPECT_TRUE(planner.Next(Shard({Saved("other", {3}, {0}, {3})}), "second")->empty());
  EXPECT_EQ(planner.Next(Shard({Saved("w", {8, 2}, {4, 0}, {4, 2})}), "third")->size(), 1u);
  EXPECT_TRUE(planner.complete());
  EXPECT_TRUE(planner.Missing("here").ok());
}

TEST(ReadPlannerTest, ReadsEachElementOnceHoweverManyPiecesHoldIt) {
  const Structure wanted = {Want("w", {4, 4}, {0, 0}, {4, 4})};
  ReadPlanner planner(wanted);
  // The middle first, then all of it: what is left is a frame, in runs in the order of the file.
  ASSERT_TRUE(planner.Next(Shard({Saved("w", {4, 4}, {1, 1}, {2, 2})}), "middle").ok());
  const ShardIndex whole = Shard({Saved("w", {4, 4}, {0, 0}, {4, 4})});
  const auto reads = planner.Next(whole, "whole");
  ASSERT_TRUE(reads.ok());
  ASSERT_EQ(reads->size(), 1u);
  EXPECT_TRUE(planner.complete());
  const auto runs = RunsOf((*reads)[0], whole.pieces[0], wanted[0]);
  ASSERT_TRUE(runs.ok());
  std::int64_t bytes = 0;
  std::int64_t end = 0;
  for (const ByteRun& run : *runs) {
    EXPECT_GE(run.source, end);
    EXPECT_EQ(run.source, run.target);
    end = run.source + run.bytes;
    bytes += run.bytes;
  }
  EXPECT_EQ(bytes, 12);
  EXPECT_TRUE(planner.Next(whole, "again")->empty());
}

TEST(ReadPlannerTest, OneNameMayGoToSeveralPlaces) {
  const Structure wanted = {Want("w", {4}, {0}, {4}), Want("w", {4}, {2}, {2})};
  ReadPlanner planner(wanted);
  EXPECT_EQ(planner.Next(Shard({Saved("w", {4}, {0}, {4})}), "file")->size(), 2u);
  EXPECT_TRUE(planner.complete());
}

TEST(ReadPlannerTest, AFileThatContradictsTheManifestIsDamaged) {
  const Structure wanted = {Want("w", {4}, {0}, {4})};
  ReadPlanner planner(wanted);
  const auto reads = planner.Next(Shard({Saved("w", {5}, {0}, {4})}), "file");
  EXPECT_EQ(reads.status().code(), Code::kDataLoss);
  EXPECT_NE(reads.status().message().find("file: tensor w"), std::string::npos);
}

TEST(ReadPlannerTest, BeginsWhereTheRankWouldLie) {
  EXPECT_EQ(NearestSavedRank(Rank(1), 4, 8), Rank(2));
  EXPECT_EQ(NearestSavedRank(Rank(5), 8, 4), Rank(2));
  EXPECT_EQ(NearestSavedRank(Rank(2), 3, 3), Rank(2));
  EXPECT_EQ(NearestSavedRank(Rank(99'999), 100'000, 100'000), Rank(99'999));
}

TEST(ReadPlannerTest, LooksAtOwnersFirstThenAround) {
  Manifest manifest;
  manifest.world = 4;
  for (int r = 0; r < 4; ++r) manifest.files.push_back({ShardName(Rank(r), 4), 0, 0, ""});
  manifest.files.push_back({ShardName(Rank(3), 4, 2), 0, 0, ""});
  const Structure nothing_own = {Want("w", {4}, {0}, {4})};
  EXPECT_EQ(FileOrder(manifest, Rank(2), nothing_own), (std::vector<std::size_t>{2, 3, 4, 0, 1}));
  const Structure own = {Want("w", {4}, {0}, {4}), Want("rng@rank1", {4}, {0}, {4})};
  EXPECT_EQ(FileOrder(manifest, Rank(2), own), (std::vector<std::size_t>{1, 2, 3, 4, 0}));
}

}  // namespace
}  // namespace perdure
