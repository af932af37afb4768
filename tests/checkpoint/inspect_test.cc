#include "checkpoint/inspect.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "checkpoint/export.h"
#include "checkpoint/safetensors.h"
#include "storage/posix_files.h"
#include "support/temp_dir.h"
#include "toy_root.h"

namespace perdure {
namespace {

class InspectTest : public testing::Test {
 protected:
  InspectTest() { MakeToyRoot(files_, root_, 2); }
  CheckpointName Newest() { return *FindCheckpoint(files_, root_, ""); }

  TempDir dir_;
  PosixFiles files_;
  const std::string root_ = dir_ / "checkpoints";
};

TEST_F(InspectTest, ListsWhatIsThereAndWhatItIs) {
  std::filesystem::create_directories(root_ + "/.tmp-step-00000009.g2-0badcafe");
  std::filesystem::create_directories(root_ + "/step-00000004.g1");
  std::filesystem::create_directories(root_ + "/unrelated");
  const auto all = ListForPeople(files_, root_);
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  std::map<std::string, CheckpointSummary> by_name;
  for (const CheckpointSummary& summary : *all) by_name[summary.name] = summary;
  EXPECT_EQ(all->front().name, ".tmp-step-00000009.g2-0badcafe");
  EXPECT_EQ(by_name[".tmp-step-00000009.g2-0badcafe"].kind, "attempt");
  EXPECT_EQ(by_name["step-00000004.g1"].kind, "foreign");
  EXPECT_EQ(by_name.count("unrelated"), 0u);
  const CheckpointSummary& newest = by_name["step-00000005.g2"];
  EXPECT_EQ(newest.kind, "committed");
  EXPECT_EQ(newest.world, 2);
  EXPECT_GT(newest.bytes, 8192);
  EXPECT_TRUE(newest.on_lineage);
  EXPECT_EQ(newest.problem, "");
  const auto age = AgeSeconds(newest, RealClock().WallNow());
  ASSERT_TRUE(age.has_value());
  EXPECT_LT(*age, 3600);
  // The one that generation 2 began from stays; the older ones are gone, one commit later.
  EXPECT_EQ(by_name["step-00000003.g1"].kind, "committed");
}

TEST_F(InspectTest, FindsByNameByStepAndTheNewest) {
  EXPECT_EQ(FormatName(Newest()), "step-00000005.g2");
  EXPECT_EQ(FormatName(*FindCheckpoint(files_, root_, "4")), "step-00000004.g2");
  EXPECT_EQ(FormatName(*FindCheckpoint(files_, root_, "step-00000004.g2")), "step-00000004.g2");
  const Status missing = FindCheckpoint(files_, root_, "77").status();
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_NE(missing.message().find("step-00000005.g2"), std::string::npos);
  EXPECT_EQ(ListForPeople(files_, dir_.path()).status().code(), Code::kNotFound);
}

TEST_F(InspectTest, VerifyReadsEveryByteAndNamesWhatIsWrong) {
  const VerifyReport good = VerifyCheckpoint(files_, root_, Newest());
  EXPECT_TRUE(good.problems.empty());
  EXPECT_EQ(good.bytes, ReadManifest(files_, root_, Newest())->TotalBytes());
  const std::string shard = root_ + "/step-00000005.g2/rank-00001-of-00002.safetensors";
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x7f');
  file.close();
  const VerifyReport bad = VerifyCheckpoint(files_, root_, Newest());
  ASSERT_EQ(bad.problems.size(), 1u);
  EXPECT_NE(bad.problems[0].find("rank-00001-of-00002.safetensors"), std::string::npos);
  std::filesystem::remove(shard);
  EXPECT_FALSE(VerifyCheckpoint(files_, root_, *ParseName("step-00000005.g2")).problems.empty());
}

TEST_F(InspectTest, ExportWritesWholeTensorsUnderTheProgramsNames) {
  ExportOptions options;
  options.part = "toy";
  const auto report = ExportCheckpoint(files_, root_, Newest(), options, dir_.path());
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->path, dir_ / "model.safetensors");
  const auto text = ReadWholeFile(files_, report->path, 1 << 20);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(static_cast<std::int64_t>(text->size()), report->bytes);
  std::uint64_t n = 0;
  std::memcpy(&n, text->data(), 8);
  const auto header = ParseSafetensorsHeader(std::string_view(*text).substr(8, n),
                                             static_cast<std::int64_t>(text->size()), "export");
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  EXPECT_EQ(header->metadata[0].first, "format");
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : header->entries) {
    names.push_back(entry.name);
    if (entry.name != "shard") continue;
    // The pieces of both ranks, whole again.
    EXPECT_EQ(entry.shape, (Shape{7, 3}));
    float last = 0;
    std::memcpy(&last, text->data() + header->data_start + entry.end - 4, 4);
    EXPECT_EQ(last, 5 * 1000.25F + 300.0F + 20 * 0.5F);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"mine@rank0", "mine@rank1", "scalar", "shard", "weight"}));

  EXPECT_EQ(ExportCheckpoint(files_, root_, Newest(), options, report->path).status().code(),
            Code::kAlreadyExists);
  const Status wrong_part =
      ExportCheckpoint(files_, root_, Newest(), ExportOptions(), dir_ / "x.safetensors").status();
  EXPECT_EQ(wrong_part.code(), Code::kInvalidArgument);
  EXPECT_NE(wrong_part.message().find("\"toy\""), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "x.safetensors"));
  options.part.reset();
  const auto all = ExportCheckpoint(files_, root_, Newest(), options, dir_ / "all.safetensors");
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->tensors, 5);
}

}  // namespace
}  // namespace perdure
