// A new run from safetensors files that are no checkpoint: the table of names, what may lie in such
// files, and what every rank makes of it.
#include "checkpoint/foreign_init.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/export.h"
#include "checkpoint/inspect.h"
#include "support/temp_dir.h"
#include "toy_root.h"

namespace perdure {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Names = std::map<std::string, std::string>;

TEST(ForeignName, ByTable) {
  const Names names = {{"model.", ""},
                       {"model.head.", "lm_head."},
                       {"model.head.bias", ""},
                       {"model.wte.weight", "transformer.wte.weight"}};
  EXPECT_EQ(ForeignName(names, "model.h.0.w"), "h.0.w");
  EXPECT_EQ(ForeignName(names, "model.head.weight"), "lm_head.weight");
  EXPECT_EQ(ForeignName(names, "model.head.bias"), std::nullopt);
  EXPECT_EQ(ForeignName(names, "model.wte.weight"), "transformer.wte.weight");
  EXPECT_EQ(ForeignName(names, "optimizer.step"), std::nullopt);
  EXPECT_EQ(ForeignName(names, "model"), std::nullopt);
  EXPECT_EQ(ForeignName({{"", "x."}}, "anything"), "x.anything");
  EXPECT_EQ(ForeignName({}, "anything"), std::nullopt);
}

// As another program would write it: no padding, any order, no metadata of ours.
struct HandMade {
  std::string header;
  std::string data;

  void Add(const std::string& name, const std::string& dtype, const std::string& shape,
           const std::string& bytes) {
    header += (header.empty() ? "{\"" : ",\"") + name + "\":{\"dtype\":\"" + dtype +
              "\",\"shape\":" + shape + ",\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + bytes.size()) + "]}";
    data += bytes;
  }
  void AddFloats(const std::string& name, const std::string& shape,
                 const std::vector<float>& values) {
    Add(name, "F32", shape,
        std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  }
  void Write(const std::string& path) const {
    const std::string text = header + "}";
    const std::uint64_t length = text.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof(length));  // little-endian, as here
    file << text << data;
  }
};

class ForeignInitTest : public testing::Test {
 protected:
  struct Started {
    Status status;
    RestoreReport report;
    bool is_step = false;      // every tensor is that of the step
    bool but_its_own = false;  // every tensor but the rank's own one is
  };

  // One generation that starts, checks what it holds, and may save once.
  std::vector<Started> Start(int world, const InitFrom& from, std::int64_t expected_step,
                             bool save = false) {
    const auto generation =
        CheckpointEngine::ClaimNext(files_, root_, "toy", Generation(1), RealClock());
    EXPECT_TRUE(generation.ok());
    Board board;
    std::vector<Started> started(static_cast<std::size_t>(world));
    RunRanks(world, [&](int r) {
      Started& mine = started[static_cast<std::size_t>(r)];
      CheckpointOptions options = ToyOptions(root_);
      options.init_from = from;
      ToyRank rank(board, r, world, *generation, files_, options);
      mine.status = rank.opened;
      mine.report = rank.report;
      if (!rank.opened.ok()) return;
      ToyState expected(r, world);
      expected.Set(expected_step);
      mine.is_step = rank.state->SameTensors(expected);
      auto values = rank.state->Values();
      values["mine"] = expected.Values()["mine"];
      mine.but_its_own = values == expected.Values();
      if (save) mine.status = rank.engine->Save(1);
      const Status closed = rank.engine->Close(In(30));
      if (mine.status.ok()) mine.status = closed;
    });
    return started;
  }
  std::string Export(int world_step, const std::string& out, std::int64_t limit = 0) {
    const std::string root = dir_ / "source";
    if (!std::filesystem::exists(root)) MakeToyRoot(files_, root, 9);
    ExportOptions options;
    options.part = "toy";
    options.shard_bytes_max = limit;
    const auto name = FindCheckpoint(files_, root, std::to_string(world_step));
    EXPECT_TRUE(name.ok());
    const auto report = ExportCheckpoint(files_, root, *name, options, out);
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    return out;
  }

  TempDir dir_;
  PosixFiles files_;
  const std::string root_ = dir_ / "checkpoints";
  const Names toy_ = {{"toy.", ""}};
};

TEST_F(ForeignInitTest, FromOurOwnExportInOneFileAndInSeveral) {
  const std::string one = Export(5, dir_ / "one.safetensors");
  const std::string several = Export(5, dir_ / "several", 100);
  std::filesystem::create_symlink(one, dir_ / "link.safetensors");
  std::filesystem::create_symlink(several, dir_ / "link");
  for (const std::string& path : {one, several, dir_ / "link.safetensors", dir_ / "link"}) {
    for (const Started& rank : Start(2, {path, toy_}, 5)) {
      ASSERT_TRUE(rank.status.ok()) << rank.status.ToString();
      EXPECT_TRUE(rank.is_step);
      EXPECT_TRUE(rank.report.fresh);
      EXPECT_EQ(rank.report.next_step, 0);
      EXPECT_EQ(rank.report.initialized_from, path);
      EXPECT_GT(rank.report.bytes, 4 * 30);
    }
  }
}

TEST_F(ForeignInitTest, FromAHandMadeFileOnAnyNumberOfRanks) {
  ToyState source(0, 1);
  source.Set(77);
  const auto values = source.Values();
  HandMade file;
  file.AddFloats("layers.scalar", "[]", values.at("scalar"));
  file.AddFloats("odd name é", "[6,5]", values.at("weight"));
  file.AddFloats("layers.shard", "[7,3]", values.at("shard"));
  file.Write(dir_ / "hand.safetensors");
  for (const int world : {1, 2, 3}) {
    Names names = {{"toy.", "layers."}, {"toy.weight", "odd name é"}};
    for (int r = 0; r < world; ++r) names["toy.mine@rank" + std::to_string(r)] = "";
    const auto ranks = Start(world, {dir_ / "hand.safetensors", names}, 77);
    for (const Started& rank : ranks) {
      ASSERT_TRUE(rank.status.ok()) << rank.status.ToString();
      EXPECT_TRUE(rank.but_its_own);
      EXPECT_FALSE(rank.is_step);  // its own one is as the program made it
      EXPECT_TRUE(rank.report.fresh);
    }
  }
}

TEST_F(ForeignInitTest, EveryDifferenceIsInOneReportAndNothingIsChanged) {
  HandMade file;
  file.AddFloats("scalar", "[1]", {1});                        // shape
  file.Add("weight", "BF16", "[6,5]", std::string(60, '\0'));  // dtype
  file.AddFloats("mine@rank0", "[4]", {1, 2, 3, 4});
  file.AddFloats("surplus", "[1]", {1});
  file.Write(dir_ / "hand.safetensors");
  for (const Started& rank : Start(2, {dir_ / "hand.safetensors", toy_}, -1)) {
    EXPECT_EQ(rank.status.code(), Code::kFailedPrecondition);
    EXPECT_THAT(rank.status.message(),
                AllOf(HasSubstr("hand.safetensors: it does not fit this program (5 differences)"),
                      HasSubstr("tensor toy.scalar: shape [] in the program, [1] in the files"),
                      HasSubstr("tensor toy.weight: dtype F32 in the program, BF16 in the files"),
                      HasSubstr("tensor toy.shard: shard is not in the files"),
                      HasSubstr("tensor toy.mine@rank1: mine@rank1 is not in the files"),
                      HasSubstr("surplus: in the files, no tensor of the program is mapped to it"),
                      Not(HasSubstr("mine@rank0"))));
  }
  // Nothing was committed, so the next start may still be one from files.
  const std::string good = Export(5, dir_ / "one.safetensors");
  for (const Started& rank : Start(2, {good, toy_}, 5)) {
    EXPECT_TRUE(rank.status.ok()) << rank.status.ToString();
    EXPECT_TRUE(rank.is_step);
  }
}

TEST_F(ForeignInitTest, AResumeWins) {
  const std::string one = Export(5, dir_ / "one.safetensors");
  for (const Started& rank : Start(2, {one, toy_}, 5, /*save=*/true)) {
    ASSERT_TRUE(rank.status.ok()) << rank.status.ToString();
    EXPECT_TRUE(rank.report.fresh);
  }
  const std::string other = Export(4, dir_ / "other.safetensors");
  for (const std::string& path : {other, dir_ / "gone"}) {
    for (const Started& rank : Start(2, {path, toy_}, 5)) {
      ASSERT_TRUE(rank.status.ok()) << rank.status.ToString();
      EXPECT_FALSE(rank.report.fresh);
      EXPECT_EQ(rank.report.next_step, 2);
      EXPECT_EQ(rank.report.initialized_from, "");
      EXPECT_TRUE(rank.is_step);  // of the first files, by way of the checkpoint
    }
  }
}

TEST_F(ForeignInitTest, FilesThatAreNotThereOrNotWhole) {
  const auto error = [&](const std::string& path) {
    const auto ranks = Start(2, {path, toy_}, -1);
    EXPECT_FALSE(ranks[1].status.ok());
    EXPECT_EQ(ranks[0].status.message(), ranks[1].status.message());
    return ranks[0].status.message();
  };
  EXPECT_THAT(error(dir_ / "nowhere"), HasSubstr("nowhere"));
  for (const Started& rank : Start(2, {dir_ / "nowhere", toy_}, -1)) {
    EXPECT_EQ(rank.status.code(), Code::kNotFound) << rank.status.ToString();
  }
  std::filesystem::create_directory(dir_ / "empty");
  EXPECT_THAT(error(dir_ / "empty"),
              HasSubstr("holds neither model.safetensors.index.json nor model.safetensors"));
  const std::string one = Export(5, dir_ / "one.safetensors");
  std::filesystem::resize_file(one, std::filesystem::file_size(one) - 1);
  EXPECT_THAT(error(one), HasSubstr("one.safetensors"));
  const std::string several = Export(5, dir_ / "several", 100);
  std::filesystem::remove(several + "/model-00002-of-00003.safetensors");
  EXPECT_THAT(error(several), HasSubstr("model-00002-of-00003.safetensors"));
  const std::string index = several + "/model.safetensors.index.json";
  std::ofstream(index, std::ios::trunc) << R"({"weight_map": {"weight": "../one.safetensors"}})";
  EXPECT_THAT(error(several), HasSubstr("is not the name of a file beside it"));
  std::ofstream(index, std::ios::trunc)
      << R"({"weight_map": {"nothing": "model-00001-of-00003.safetensors"}})";
  EXPECT_THAT(error(several), HasSubstr("which it does not"));
  std::ofstream(index, std::ios::trunc) << "{";
  EXPECT_THAT(error(several), HasSubstr("model.safetensors.index.json"));
}

}  // namespace
}  // namespace perdure
