#include "checkpoint/handout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint/names.h"

namespace perdure {
namespace {

Manifest ManifestOf(int world) {
  Manifest manifest;
  manifest.root_id = "00112233445566778899aabbccddeeff";
  manifest.job = "handout";
  manifest.id = {Generation(2), Step(7)};
  manifest.attempt = "0badcafe";
  manifest.created = "2026-01-31T12:00:00.000Z";
  manifest.world = world;
  manifest.mesh = {{"data", world}};
  manifest.producer = "test";
  manifest.tensors["a"] = {DType::kF32, {4, 2}};
  manifest.tensors["z.weight"] = {DType::kBF16, {16}};
  manifest.blobs["notes"] = 12;
  for (int rank = 0; rank < world; ++rank) {
    for (int part = 1; part <= (rank == 1 ? 2 : 1); ++part) {
      manifest.files.push_back(
          {ShardName(Rank(rank), world, part), 5000 + rank, 4096, std::string(32, 'a')});
    }
    manifest.tensors[PerRankName("m.moment", Rank(rank))] = {DType::kF32, {rank + 1}};
    manifest.blobs[PerRankName("rng.state", Rank(rank))] = 100 + rank;
  }
  return manifest;
}

std::vector<std::string> NamesIn(const Manifest& manifest) {
  std::vector<std::string> names;
  for (const auto& [name, facts] : manifest.tensors) names.push_back(name);
  for (const auto& [name, bytes] : manifest.blobs) names.push_back(name);
  return names;
}

TEST(Handout, AShareHasTheRanksOwnAndWhatAllShare) {
  const Manifest manifest = ManifestOf(12);
  const Handout handout = MakeHandout(manifest);
  ASSERT_EQ(handout.own.size(), 12U);
  std::vector<ManifestFile> files;
  for (int rank = 0; rank < 12; ++rank) {
    const Result<Manifest> share =
        ReadShare(handout.common, handout.own[static_cast<std::size_t>(rank)], "share");
    ASSERT_TRUE(share.ok()) << share.status().ToString();
    EXPECT_EQ(share->files.size(), rank == 1 ? 2U : 1U);
    files.insert(files.end(), share->files.begin(), share->files.end());
    EXPECT_EQ(share->id, manifest.id);
    EXPECT_EQ(share->attempt, manifest.attempt);
    EXPECT_EQ(share->world, manifest.world);
    EXPECT_EQ(share->mesh, manifest.mesh);
    EXPECT_EQ(share->tensors.size(), 3U);
    EXPECT_EQ(share->tensors.at("a"), manifest.tensors.at("a"));
    const std::string moment = PerRankName("m.moment", Rank(rank));
    EXPECT_EQ(share->tensors.at(moment), manifest.tensors.at(moment));
    EXPECT_EQ(share->blobs.size(), 2U);
    EXPECT_EQ(share->blobs.at(PerRankName("rng.state", Rank(rank))), 100 + rank);
  }
  EXPECT_EQ(files, manifest.files);  // each line in one share
}

TEST(Handout, PlacesOfNamesAreThoseOfTheShare) {
  const Manifest manifest = ManifestOf(12);
  const Handout handout = MakeHandout(manifest);
  const std::vector<std::string> names = NamesIn(manifest);
  const ShareOfNames places(names, 12);
  std::vector<int> held(names.size(), 0);
  for (int rank = 0; rank < 12; ++rank) {
    const Result<Manifest> share =
        ReadShare(handout.common, handout.own[static_cast<std::size_t>(rank)], "share");
    ASSERT_TRUE(share.ok());
    std::vector<std::string> in_order;
    for (const std::size_t place : places.Of(Rank(rank))) {
      in_order.push_back(names[place]);
      ++held[place];
    }
    EXPECT_EQ(in_order, NamesIn(*share));
  }
  EXPECT_EQ(std::count(held.begin(), held.end(), 12), 3);  // a, z.weight, notes
  EXPECT_EQ(std::count(held.begin(), held.end(), 1), 24);
  EXPECT_EQ(ShareOfNames(names, 0).Common().size(), names.size());
}

TEST(Handout, ADamagedShareIsRefused) {
  const Handout handout = MakeHandout(ManifestOf(2));
  std::string common = handout.common;
  common[common.size() / 2] ^= 1;
  EXPECT_EQ(ReadShare(common, handout.own[0], "share").status().code(), Code::kDataLoss);
  EXPECT_EQ(ReadShare(handout.common, "", "share").status().code(), Code::kDataLoss);
}

}  // namespace
}  // namespace perdure
