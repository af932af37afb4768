#include "checkpoint/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "checkpoint/damage.h"
#include "checkpoint/names.h"
#include "checkpoint/read_plan.h"
#include "checkpoint/shard.h"

namespace perdure {
namespace {

// Moves the runs out of a saved piece, reading only the chunks that they touch.
Status ReadRuns(ShardReader& shard, const ShardPiece& piece, const std::vector<ByteRun>& runs,
                std::span<std::byte> target, std::int64_t& bytes_read) {
  if (runs.empty()) return Ok();
  const std::int64_t bytes = piece.end - piece.begin;
  const bool in_place = runs.size() == 1 && runs[0].bytes == bytes;
  std::vector<std::byte> scratch;
  std::size_t next = 0;
  const auto chunks = static_cast<std::size_t>((bytes + kHashChunkBytes - 1) / kHashChunkBytes);
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const std::int64_t begin = static_cast<std::int64_t>(chunk) * kHashChunkBytes;
    const std::int64_t length = ChunkBytes(piece, chunk);
    while (next < runs.size() && runs[next].source + runs[next].bytes <= begin) ++next;
    if (next == runs.size()) break;
    if (runs[next].source >= begin + length) continue;
    bytes_read += length;
    if (in_place) {
      PERDURE_RETURN_IF_ERROR(
          shard.FetchChunk(piece, chunk,
                           target.subspan(static_cast<std::size_t>(runs[0].target + begin),
                                          static_cast<std::size_t>(length))));
      continue;
    }
    scratch.resize(static_cast<std::size_t>(length));
    PERDURE_RETURN_IF_ERROR(shard.ReadChunk(piece, chunk, scratch));
    for (std::size_t i = next; i < runs.size() && runs[i].source < begin + length; ++i) {
      const std::int64_t from = std::max(runs[i].source, begin);
      const std::int64_t to = std::min(runs[i].source + runs[i].bytes, begin + length);
      std::memcpy(target.data() + runs[i].target + (from - runs[i].source),
                  scratch.data() + (from - begin), static_cast<std::size_t>(to - from));
    }
  }
  return Ok();
}

// The stretches of a shard's file that will be read, in order, so that the disk can be kept busy.
class Stretches {
 public:
  // Smaller gaps than this are cheaper to read through than to jump over.
  static constexpr std::int64_t kGapBytesMax = std::int64_t{1} << 20;

  void Add(std::int64_t from, std::int64_t to) {
    if (!all_.empty() && from >= all_.back().from && from <= all_.back().to + kGapBytesMax) {
      all_.back().to = std::max(all_.back().to, to);
    } else {
      all_.push_back({from, to});
    }
  }

  // Before a read at `place`.
  void Announce(ShardReader& shard, std::int64_t place) {
    if (next_ == all_.size() || place < all_[next_].from) return;
    shard.Expect(all_[next_].from, all_[next_].to);
    ++next_;
  }

 private:
  struct Stretch {
    std::int64_t from = 0;
    std::int64_t to = 0;
  };
  std::vector<Stretch> all_;
  std::size_t next_ = 0;
};

std::size_t ChunkOf(std::int64_t offset_in_piece) {
  return static_cast<std::size_t>(offset_in_piece / kHashChunkBytes);
}

Status CheckShard(const ShardReader& shard, const Manifest& manifest, const std::string& name) {
  const ShardInfo& info = shard.index().info;
  const std::optional<ShardFileName> parsed = ParseShardName(name);
  if (info.id != manifest.id || info.attempt != manifest.attempt || info.world != manifest.world ||
      !parsed.has_value() || info.rank != parsed->rank || info.world != parsed->world) {
    return Damaged(shard.path(), "is a shard of another checkpoint");
  }
  return Ok();
}

// Reads from the files of `manifest` that are not `done`, until nothing is missing.
Status ReadFiles(Files& files, const std::string& directory, const Manifest& manifest, Rank near,
                 const Structure& wanted,
                 const std::function<std::span<std::byte>(std::size_t)>& target,
                 ReadPlanner& planner, std::set<std::string>& done, std::int64_t& bytes_read) {
  for (const std::size_t next : FileOrder(manifest, near, wanted)) {
    if (planner.complete()) break;
    const ManifestFile& file = manifest.files[next];
    if (!done.insert(file.name).second) continue;
    PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<ShardReader> shard,
                             ShardReader::Open(files, directory, file));
    PERDURE_RETURN_IF_ERROR(CheckShard(*shard, manifest, file.name));
    bytes_read += shard->index().data_start;
    PERDURE_ASSIGN_OR_RETURN(const std::vector<PieceRead> reads,
                             planner.Next(shard->index(), shard->path()));
    const std::vector<ShardPiece>& pieces = shard->index().pieces;
    Stretches stretches;
    for (const PieceRead& read : reads) {
      const ShardPiece& piece = pieces[read.piece];
      PERDURE_ASSIGN_OR_RETURN(const std::vector<ByteRun> runs,
                               RunsOf(read, piece, wanted[read.wanted]));
      const std::int64_t last = runs.back().source + runs.back().bytes - 1;
      stretches.Add(shard->PlaceOf(piece, ChunkOf(runs.front().source)),
                    shard->PlaceOf(piece, ChunkOf(last)) + ChunkBytes(piece, ChunkOf(last)));
    }
    for (const PieceRead& read : reads) {
      const ShardPiece& piece = pieces[read.piece];
      // Worked out again: what lies in many small runs takes more room than the bytes do.
      PERDURE_ASSIGN_OR_RETURN(const std::vector<ByteRun> runs,
                               RunsOf(read, piece, wanted[read.wanted]));
      stretches.Announce(*shard, shard->PlaceOf(piece, ChunkOf(runs.front().source)));
      PERDURE_RETURN_IF_ERROR(ReadRuns(*shard, piece, runs, target(read.wanted), bytes_read));
    }
    PERDURE_RETURN_IF_ERROR(shard->Settle());
  }
  return Ok();
}

}  // namespace

Result<std::int64_t> ReadPieces(Files& files, const std::string& directory,
                                const Manifest& manifest, Rank near, const Structure& wanted,
                                const std::function<std::span<std::byte>(std::size_t)>& target,
                                const std::function<Result<Manifest>()>& whole) {
  Structure stored = wanted;
  for (Piece& piece : stored) piece.name = manifest.Stored(piece.name);
  ReadPlanner planner(stored);
  std::int64_t bytes_read = 0;
  std::set<std::string> done;
  PERDURE_RETURN_IF_ERROR(
      ReadFiles(files, directory, manifest, near, stored, target, planner, done, bytes_read));
  if (!planner.complete() && whole) {
    PERDURE_ASSIGN_OR_RETURN(const Manifest all, whole());
    PERDURE_RETURN_IF_ERROR(
        ReadFiles(files, directory, all, near, stored, target, planner, done, bytes_read));
  }
  PERDURE_RETURN_IF_ERROR(planner.Missing(directory));
  return bytes_read;
}

}  // namespace perdure
