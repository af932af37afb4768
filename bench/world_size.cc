// What does it cost one rank to restore the layout that was saved, when 100, 1,000, 10,000 or
// 100,000 ranks have saved it? Rank 0 reads the manifest and hands out shares (handout.h); a rank
// reads its share and the header of its own shard, and knows from them where each of its bytes is.
// Manifests and headers as a run of that many ranks would write them, made in memory; data is left
// out, since a rank reads its own bytes whatever the world.
#include <fmt/format.h>
#include <malloc.h>
#include <time.h>

#include <string>
#include <vector>

#include "bench/disk.h"
#include "bench/report.h"
#include "checkpoint/handout.h"
#include "checkpoint/hash.h"
#include "checkpoint/names.h"
#include "checkpoint/read_plan.h"
#include "checkpoint/restore_plan.h"
#include "checkpoint/shard.h"

namespace perdure::bench {
namespace {

constexpr int kWorlds[] = {100, 1'000, 10'000, 100'000};
constexpr int kTensors = 300;
constexpr std::int64_t kRows = 8;  // of each tensor on each rank
constexpr std::int64_t kColumns = 1024;
constexpr int kRanksTried = 30;
constexpr int kRepeats = 3;

// Fully sharded tensors, and two blobs of each rank's own.
Structure StructureOf(Rank rank, int world) {
  Structure structure;
  for (int i = 0; i < kTensors; ++i) {
    structure.push_back({fmt::format("model.layers.{}.weight", i),
                         false,
                         DType::kF32,
                         {kRows * world, kColumns},
                         {kRows * rank.value(), 0},
                         {kRows, kColumns}});
  }
  for (const char* const blob : {"rng.state", "sampler.state"}) {
    structure.push_back({PerRankName(blob, rank), true, DType::kU8, {64}, {0}, {64}});
  }
  return structure;
}

ShardInfo InfoOf(Rank rank, int world) {
  return {{Generation(1), Step(1000)}, "0badcafe", rank, world};
}

std::string HeaderOf(Rank rank, int world, std::int64_t* file_bytes) {
  std::vector<ShardPiece> pieces;
  for (const Piece& piece : StructureOf(rank, world)) {
    ShardPiece saved;
    saved.name = piece.name;
    saved.blob = piece.blob;
    saved.dtype = piece.dtype;
    saved.shape = piece.shape;
    saved.global_shape = piece.global_shape;
    saved.offset = piece.offset;
    saved.chunk_hashes = {Hash64(std::as_bytes(std::span(piece.name)))};
    pieces.push_back(std::move(saved));
  }
  Need(LayOut(pieces));
  Result<std::string> header = FormatShardHeader(InfoOf(rank, world), pieces);
  Need(header.status());
  *file_bytes = static_cast<std::int64_t>(header->size()) + pieces.back().end;
  return std::move(header).value();
}

Manifest ManifestOf(int world) {
  Manifest manifest;
  manifest.root_id = std::string(32, '0');
  manifest.job = "bench";
  manifest.id = {Generation(1), Step(1000)};
  manifest.attempt = "0badcafe";
  manifest.created = "2026-01-31T12:00:00.000Z";
  manifest.world = world;
  manifest.producer = "bench";
  std::int64_t file_bytes = 0;
  const std::string header = HeaderOf(Rank(0), world, &file_bytes);
  for (int rank = 0; rank < world; ++rank) {
    manifest.files.push_back({ShardName(Rank(rank), world), file_bytes,
                              static_cast<std::int64_t>(header.size()), std::string(32, 'a')});
    for (const Piece& piece : StructureOf(Rank(rank), world)) {
      if (piece.blob) manifest.blobs[piece.name] = piece.shape[0];
      if (rank == 0 && !piece.blob)
        manifest.tensors[piece.name] = {piece.dtype, piece.global_shape};
    }
  }
  return manifest;
}

struct Cost {
  double us = 0;
  double bytes = 0;
};

// Of this thread: what others do on a busy machine is not a cost of the rank.
double CpuSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

// From the texts to a complete plan of reads. With `whole` from all of the manifest instead.
Cost OfRank(Rank rank, int world, const Handout& handout, const std::string* whole) {
  std::int64_t file_bytes = 0;
  const std::string header = HeaderOf(rank, world, &file_bytes);
  LocalState state;
  state.structure = StructureOf(rank, world);
  state.entries.resize(state.structure.size());
  const std::string& own = handout.own[static_cast<std::size_t>(rank.value())];
  const double begin = CpuSeconds();
  const Result<Manifest> share = whole == nullptr ? ReadShare(handout.common, own, "share")
                                                  : ParseManifest(*whole, "manifest");
  Need(share.status());
  const RestorePlan plan = PlanRestore(*share, world, state);
  const Result<ShardIndex> index = ParseShardHeader(header, file_bytes, "header");
  Need(index.status());
  ReadPlanner planner(plan.reads);
  const Result<std::vector<PieceRead>> reads = planner.Next(*index, "header");
  const double seconds = CpuSeconds() - begin;
  Need(reads.status());
  if (!plan.differences.empty() || !planner.complete() ||
      (whole == nullptr && share->files.size() != 1) ||
      reads->size() != static_cast<std::size_t>(kTensors) + 2) {
    Need(Status(Code::kInternal, "a share is not what its rank needs"));
  }
  return {seconds * 1e6, static_cast<double>(handout.common.size() + own.size() + header.size())};
}

// Rank 0's part, of which only the shares of `ranks` are kept: a rank has no more memory of others.
Handout HandOut(const std::string& text, const std::vector<Rank>& ranks,
                std::vector<double>* us_per_rank) {
  const double begin = CpuSeconds();
  const Result<Manifest> manifest = ParseManifest(text, "manifest");
  Need(manifest.status());
  Handout all = MakeHandout(*manifest);
  us_per_rank->push_back((CpuSeconds() - begin) * 1e6 / manifest->world);
  Handout kept;
  kept.common = std::move(all.common);
  kept.own.resize(all.own.size());
  for (const Rank rank : ranks) {
    const auto i = static_cast<std::size_t>(rank.value());
    kept.own[i] = std::move(all.own[i]);
  }
  return kept;
}

void Run() {
  std::vector<std::vector<double>> rank_us(std::size(kWorlds));
  std::vector<std::vector<double>> rank_bytes(std::size(kWorlds));
  std::vector<std::vector<double>> hand_out_us(std::size(kWorlds));
  std::vector<std::vector<double>> whole_us(std::size(kWorlds));
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (std::size_t w = 0; w < std::size(kWorlds); ++w) {
      const int world = kWorlds[w];
      std::vector<Rank> ranks;
      for (int i = 0; i < kRanksTried; ++i) {
        ranks.emplace_back(static_cast<std::int64_t>(world - 1) * i / (kRanksTried - 1));
      }
      std::string text = FormatManifest(ManifestOf(world));
      const Handout handout = HandOut(text, ranks, &hand_out_us[w]);
      whole_us[w].push_back(OfRank(ranks.back(), world, handout, &text).us);
      text = std::string();
      ::malloc_trim(0);
      std::vector<double> us;
      std::vector<double> bytes;
      for (const Rank rank : ranks) {
        const Cost cost = OfRank(rank, world, handout, nullptr);
        us.push_back(cost.us);
        bytes.push_back(cost.bytes);
      }
      rank_us[w].push_back(Median(us));
      rank_bytes[w].push_back(Median(bytes));
    }
  }
  const auto report = [&](const std::string& what, const std::string& unit,
                          const std::vector<std::vector<double>>& found) {
    for (std::size_t w = 0; w < std::size(kWorlds); ++w) {
      Report({.id = "world_size",
              .what = fmt::format("{} ranks, {}", kWorlds[w], what),
              .unit = unit,
              .limit_is = fmt::format("the same with {} ranks", kWorlds[0]),
              .goal = 1.2,
              .less_is_better = true},
             found[w], found[0]);
    }
  };
  report("CPU time of a rank", "us", rank_us);
  report("bytes of a rank: its share and its header", "bytes", rank_bytes);
  report("CPU time of rank 0 for each rank: reading the manifest, making the shares", "us",
         hand_out_us);
  for (std::size_t w = 0; w < std::size(kWorlds); ++w) {
    Report({.id = "world_size",
            .what = fmt::format("{} ranks, CPU time of a rank", kWorlds[w]),
            .unit = "us",
            .limit_is = "if it read the whole manifest",
            .goal = 1.0,
            .less_is_better = true},
           rank_us[w], whole_us[w]);
  }
}

}  // namespace
}  // namespace perdure::bench

int main() {
  perdure::bench::Run();
  return 0;
}
