// How fast does a rank's shard become durable? From memory to fsync of its directory, hashed on the
// way, through the files that a session uses; against fio writing as many bytes. Both make a new
// file in the same directory each time, and take turns at being first.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <utility>

#include "bench/disk.h"
#include "bench/report.h"
#include "checkpoint/names.h"
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
  const ShardInfo info{{Generation(1), Step(1)}, "0badcafe", Rank(0), 1};
  const std::string path = JoinPath(directory.path(), ShardName(info.rank, info.world, 1));
  std::int64_t bytes = state.bytes();
  const Pairs pairs = MeasurePairs(kWarmUps, kRepeats, [&](int repeat) {
    double rate = 0;
    double limit = 0;
    for (const bool our_turn : {repeat % 2 == 0, repeat % 2 != 0}) {
      SettleDisk(directory.path());
      if (our_turn) {
        const auto begin = std::chrono::steady_clock::now();
        const Result<ManifestFile> file =
            WriteShard(files, directory.path(), info, state.Contents());
        Need(file.status());
        bytes = file->bytes;
        rate = static_cast<double>(bytes) / SecondsSince(begin) / 1e9;
      } else {
        limit = Fio("write", path, bytes);
      }
      std::filesystem::remove(path);
    }
    return std::pair(rate, limit);
  });
  Report({.id = "shard_write",
          .what = fmt::format("{} MiB, durable", state.bytes() >> 20),
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
