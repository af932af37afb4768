// CKPT-6: whatever happens to the bytes of a checkpoint is found, with file and tensor named, and
// the next older one comes back instead.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "checkpoint/inspect.h"
#include "checkpoint/safetensors.h"
#include "generation.h"
#include "storage/recording_files.h"

namespace perdure {
namespace {

constexpr const char* kRoot = "/checkpoints";
constexpr int kWorld = 2;
constexpr const char* kNewest = "step-00000003.g1";
constexpr const char* kOlder = "step-00000002.g1";

class DamageTest : public testing::Test {
 protected:
  DamageTest() {
    Log().set_level(spdlog::level::off);
    RecordingFiles files;
    EXPECT_TRUE(RunGeneration(files, kRoot, kWorld, 4).status.ok());
    disk_ = files.Current();
  }

  static std::size_t NodeOf(const MemoryDisk& disk, const std::string& path) {
    std::size_t node = 0;
    for (std::size_t at = 1; at <= path.size();) {
      const std::size_t slash = std::min(path.find('/', at), path.size());
      node = disk.nodes[node].names.at(path.substr(at, slash - at));
      at = slash + 1;
    }
    return node;
  }
  static std::string PathOf(const std::string& checkpoint, const std::string& file) {
    return fmt::format("{}/{}/{}", kRoot, checkpoint, file);
  }
  static std::string& BytesOf(MemoryDisk& disk, const std::string& checkpoint,
                              const std::string& file) {
    return disk.nodes[NodeOf(disk, PathOf(checkpoint, file))].bytes;
  }
  static std::string Shard(int rank) { return ShardName(Rank(rank), kWorld); }

  // The first thing that is wrong with a checkpoint; empty: nothing.
  static std::string Verify(const MemoryDisk& disk) {
    RecordingFiles files(disk);
    const VerifyReport report = VerifyCheckpoint(files, kRoot, *ParseName(kNewest));
    return report.problems.empty() ? "" : report.problems[0];
  }

  // A run that goes on from this disk passes the newest over, saying `why`, and has the older one.
  static void ExpectPassedOver(const MemoryDisk& disk, const std::string& why) {
    RecordingFiles files(disk);
    const Ran ran = RunGeneration(files, kRoot, kWorld, 0);
    ASSERT_TRUE(ran.status.ok()) << ran.status.ToString();
    EXPECT_TRUE(ran.state_right);
    EXPECT_EQ(ran.report.checkpoint, kOlder);
    ASSERT_EQ(ran.report.passed_over.size(), 1u);
    EXPECT_EQ(ran.report.passed_over[0].first, kNewest);
    EXPECT_NE(ran.report.passed_over[0].second.find(why), std::string::npos)
        << ran.report.passed_over[0].second;
  }

  void ExpectFound(const MemoryDisk& disk, const std::string& file) {
    EXPECT_NE(Verify(disk).find(file), std::string::npos) << Verify(disk);
    ExpectPassedOver(disk, file);
  }

  MemoryDisk disk_;
};

TEST_F(DamageTest, EveryByteOfEveryFileCounts) {
  ASSERT_EQ(Verify(disk_), "");
  for (const std::string& file : {std::string(kManifestName), Shard(0), Shard(1)}) {
    const std::string good = BytesOf(disk_, kNewest, file);
    std::vector<SafetensorsEntry> entries;
    std::int64_t data_start = INT64_MAX;
    if (file != kManifestName) {
      std::uint64_t length = 0;
      std::memcpy(&length, good.data(), sizeof(length));
      const auto header = ParseSafetensorsHeader(std::string_view(good).substr(8, length),
                                                 static_cast<std::int64_t>(good.size()), file);
      ASSERT_TRUE(header.ok());
      entries = header->entries;
      data_start = header->data_start;
    }
    for (std::size_t at = 0; at < good.size(); ++at) {
      MemoryDisk disk = disk_;
      BytesOf(disk, kNewest, file)[at] = static_cast<char>(good[at] ^ (1 << (at % 8)));
      const std::string problem = Verify(disk);
      ASSERT_NE(problem.find(PathOf(kNewest, file)), std::string::npos)
          << file << " byte " << at << ": " << problem;
      for (const SafetensorsEntry& entry : entries) {
        const std::int64_t in_data = static_cast<std::int64_t>(at) - data_start;
        if (in_data < entry.begin || in_data >= entry.end) continue;
        ASSERT_NE(problem.find(entry.name), std::string::npos) << problem;
      }
    }
  }
}

TEST_F(DamageTest, EveryTruncationAndEveryTailIsFound) {
  for (const std::string& file : {std::string(kManifestName), Shard(0), Shard(1)}) {
    const std::string good = BytesOf(disk_, kNewest, file);
    for (std::size_t bytes = 0; bytes <= good.size() + 1; bytes += bytes < 4000 ? 97 : 1) {
      if (bytes == good.size()) continue;
      MemoryDisk disk = disk_;
      BytesOf(disk, kNewest, file).resize(bytes, '\n');
      ASSERT_NE(Verify(disk).find(PathOf(kNewest, file)), std::string::npos)
          << file << " " << bytes;
    }
    MemoryDisk disk = disk_;
    BytesOf(disk, kNewest, file).pop_back();
    ExpectFound(disk, file);
  }
}

TEST_F(DamageTest, APageOfZerosIsFound) {
  for (const std::string& file : {std::string(kManifestName), Shard(0), Shard(1)}) {
    const std::size_t bytes = BytesOf(disk_, kNewest, file).size();
    for (std::size_t page = 0; page < bytes; page += 4096) {
      MemoryDisk disk = disk_;
      std::string& text = BytesOf(disk, kNewest, file);
      std::fill(text.begin() + static_cast<std::ptrdiff_t>(page),
                text.begin() + static_cast<std::ptrdiff_t>(std::min(page + 4096, bytes)), '\0');
      ExpectFound(disk, file);
    }
  }
}

TEST_F(DamageTest, AFileOfAnotherStepOrRankIsNotTakenForThisOne) {
  for (const std::string& file : {std::string(kManifestName), Shard(0), Shard(1)}) {
    MemoryDisk disk = disk_;
    BytesOf(disk, kNewest, file) = BytesOf(disk_, kOlder, file);
    ExpectFound(disk, file);
  }
  MemoryDisk disk = disk_;
  std::swap(BytesOf(disk, kNewest, Shard(0)), BytesOf(disk, kNewest, Shard(1)));
  ExpectFound(disk, Shard(0));
}

// The same state saved twice: bytes of tensors are equal, attempts are not.
TEST_F(DamageTest, AFileOfAnotherAttemptAtTheSameStepIsNotTakenForThisOne) {
  RecordingFiles other;
  ASSERT_TRUE(RunGeneration(other, kRoot, kWorld, 4).status.ok());
  MemoryDisk others = other.Current();
  for (const std::string& file : {std::string(kManifestName), Shard(0), Shard(1)}) {
    MemoryDisk disk = disk_;
    BytesOf(disk, kNewest, file) = BytesOf(others, kNewest, file);
    ExpectFound(disk, file);
  }
}

TEST_F(DamageTest, AMissingFileIsFound) {
  for (const std::string& file : {Shard(0), Shard(1)}) {
    MemoryDisk disk = disk_;
    disk.nodes[NodeOf(disk, fmt::format("{}/{}", kRoot, kNewest))].names.erase(file);
    ExpectFound(disk, file);
  }
}

}  // namespace
}  // namespace perdure
