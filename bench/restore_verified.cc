// How fast does a rank get its shard back, every byte checked? From the disk into memory of its own
// (touched before: what is asked is the disk), through the files that a session uses; against fio
// reading the same file.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "bench/disk.h"
#include "bench/report.h"
#include "checkpoint/reader.h"
#include "storage/bounded_files.h"
#include "storage/direct_files.h"

namespace perdure::bench {
namespace {

constexpr int kRepeats = 9;
constexpr int kWarmUps = 1;

void Run() {
  const DiskDirectory directory;
  const DiskState state(BenchBytes());
  BoundedFiles files(std::make_shared<DirectFiles>(), std::chrono::seconds(300));
  Manifest manifest;
  manifest.id = {Generation(1), Step(1)};
  manifest.attempt = "0badcafe";
  manifest.world = 1;
  const Result<ManifestFile> file =
      WriteShard(files, directory.path(), {manifest.id, manifest.attempt, Rank(0), manifest.world},
                 state.Contents());
  Need(file.status());
  manifest.files = {*file};
  Structure wanted;
  std::vector<std::vector<std::byte>> memory;
  for (const ShardPiece& piece : state.pieces()) {
    wanted.push_back(
        {piece.name, piece.blob, piece.dtype, piece.global_shape, piece.offset, piece.shape});
    memory.emplace_back(static_cast<std::size_t>(piece.shape[0]), std::byte{1});
  }
  const std::string path = JoinPath(directory.path(), file->name);
  const Pairs pairs = MeasurePairs(kWarmUps, kRepeats, [&](int repeat) {
    double rate = 0;
    double limit = 0;
    // Taking turns at being first: whatever keeps the file besides us may know it from before.
    for (const bool our_turn : {repeat % 2 == 0, repeat % 2 != 0}) {
      ForgetCached(path);
      SettleDisk(directory.path());
      if (!our_turn) {
        limit = Fio("read", path, file->bytes);
        continue;
      }
      const auto begin = std::chrono::steady_clock::now();
      const Result<std::int64_t> read =
          ReadPieces(files, directory.path(), manifest, Rank(0), wanted,
                     [&](std::size_t i) -> std::span<std::byte> { return memory[i]; });
      Need(read.status());
      rate = static_cast<double>(*read) / SecondsSince(begin) / 1e9;
    }
    return std::pair(rate, limit);
  });
  Report({.id = "restore_verified",
          .what = fmt::format("{} MiB, every byte checked", state.bytes() >> 20),
          .unit = "GB/s",
          .limit_is = kFioIs,
          .goal = 0.90},
         pairs);
}

}  // namespace
}  // namespace perdure::bench

int main() {
  perdure::bench::Run();
  return 0;
}
