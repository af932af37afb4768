// A checkpoint root with a past, for the tests of the tools: generation 1 saved steps 1 to 3,
// generation 2 went on with 4 and 5, two ranks each. And ways to harm it.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/posix.h"
#include "checkpoint/claim.h"
#include "checkpoint/json.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/support.h"
#include "storage/file_store.h"
#include "storage/posix_files.h"

namespace perdure {

inline void MakeToyRoot(Files& files, const std::string& root, int keep_last_n) {
  for (const std::int64_t last : {3, 5}) {
    const auto generation =
        CheckpointEngine::ClaimNext(files, root, "toy", Generation(1), RealClock());
    ASSERT_TRUE(generation.ok());
    Board board;
    RunRanks(2, [&](int r) {
      CheckpointOptions options = ToyOptions(root);
      options.interval_steps = 1;
      options.keep_last_n = keep_last_n;
      ToyRank rank(board, r, 2, *generation, files, options);
      ASSERT_TRUE(rank.opened.ok()) << rank.opened.ToString();
      for (std::int64_t step = rank.report.next_step; step <= last; ++step) {
        rank.state->Set(step);
        ASSERT_TRUE(rank.engine->EndStep(step).ok());
      }
      ASSERT_TRUE(rank.engine->Close(In(30)).ok());
    });
  }
}

// The claim of a generation whose process is gone; its number is past what the kernel gives.
inline void WriteDeadClaim(Files& files, const std::string& root, Generation generation) {
  char host[256] = {};
  ASSERT_EQ(::gethostname(host, sizeof(host) - 1), 0);
  const std::string text =
      SealJson("{\n\"generation\": " + std::to_string(generation.value()) +
               ",\n\"claimant\": \"00\",\n\"host\": " + QuoteJson(host) +
               ",\n\"pid\": 2000000000,\n\"created\": \"2026-01-01T00:00:00Z\",\n");
  ASSERT_TRUE(FileStore(files, root).Create("lineage/" + ClaimName(generation), text).ok());
}

// The first byte of a rank's data, which belongs to a tensor, becomes another one. The header of so
// small a state ends where data begins at the earliest.
inline void DamageShard(const std::string& directory, int rank) {
  constexpr std::streamoff kDataStart = 4096;
  const std::string path = directory + "/" + ShardName(Rank(rank), 2);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  ASSERT_TRUE(file.is_open()) << path;
  file.seekg(kDataStart);
  const char damaged = static_cast<char>(file.get() ^ 0x10);
  file.seekp(kDataStart);
  file.put(damaged);
}

// The manifest names the files of rank 0 only: what rank 1 alone held has a hole now.
inline void LeaveOutRank1(Files& files, const std::string& directory) {
  const std::string path = directory + "/manifest.json";
  const auto text = ReadWholeFile(files, path, 1 << 20);
  ASSERT_TRUE(text.ok());
  auto manifest = ParseManifest(*text, path);
  ASSERT_TRUE(manifest.ok());
  ASSERT_EQ(manifest->files.size(), 2u);
  manifest->files.pop_back();
  std::ofstream(path, std::ios::trunc) << FormatManifest(*manifest);
}

}  // namespace perdure
