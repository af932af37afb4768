// One rank's file of a checkpoint: a safetensors file whose __metadata__["perdure"] says where each
// piece belongs and hashes every 4 MiB of it. docs/formats/safetensors-shard.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/hash_lane.h"
#include "checkpoint/lineage.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "perdure/ids.h"
#include "perdure/status.h"
#include "perdure/tensor.h"
#include "storage/files.h"

namespace perdure {

inline constexpr std::int64_t kHashChunkBytes = std::int64_t{4} << 20;

// Who wrote a shard, and as part of what.
struct ShardInfo {
  CheckpointId id;
  std::string attempt;
  Rank rank;
  int world = 0;
  friend bool operator==(const ShardInfo&, const ShardInfo&) = default;
};

// A piece of a tensor, or a blob (U8, one extent), as it lies in a shard.
struct ShardPiece {
  std::string name;
  bool blob = false;
  DType dtype = DType::kF32;
  Shape shape;
  Shape global_shape;
  Shape offset;            // of the piece in the global tensor
  std::int64_t begin = 0;  // in the shard's data
  std::int64_t end = 0;
  std::vector<std::uint64_t> chunk_hashes;  // XXH3-64 of each kHashChunkBytes, the last one shorter
  friend bool operator==(const ShardPiece&, const ShardPiece&) = default;
};

struct ShardIndex {
  ShardInfo info;
  std::vector<ShardPiece> pieces;  // in the order of their data
  std::int64_t data_start = 0;
};

// Puts pieces into the order of the data and sets begin and end from dtype and shape.
Status LayOut(std::vector<ShardPiece>& pieces);

// The bytes in front of the data. Their number does not depend on the hashes. Pure.
Result<std::string> FormatShardHeader(const ShardInfo& info, const std::vector<ShardPiece>& pieces);

// `header` is the whole of the file before its data. kDataLoss unless it is a valid safetensors
// header whose index describes every entry. Pure.
Result<ShardIndex> ParseShardHeader(std::string_view header, std::int64_t file_bytes,
                                    const std::string& what);

struct ShardContent {
  ShardPiece piece;                  // hashes are filled in by the writer
  std::span<const std::byte> bytes;  // packed; unused when there is a `read`
  // Fills `packed` with the piece's bytes from `offset`, for pieces of which there is no copy: they
  // pass through the writer's own buffers, at most kHashChunkBytes at a time, in order.
  std::function<Status(std::int64_t offset, std::span<std::byte> packed)> read = {};
};

// Writes what a rank has to write, in as many files as the limit on headers asks for: one, but for
// about half a million pieces and more. Each as WriteShard does it.
Result<std::vector<ManifestFile>> WriteShards(
    Files& files, const std::string& directory, const ShardInfo& info,
    std::vector<ShardContent> contents, std::int64_t header_bytes_max = kSafetensorsHeaderBytesMax);

// Writes a shard and makes it durable, its name in `directory` included. The data streams out
// first, hashed on another core as it passes; the header is written last; fsync, close, fsync of
// the directory.
Result<ManifestFile> WriteShard(Files& files, const std::string& directory, const ShardInfo& info,
                                std::vector<ShardContent> contents, int part = 1);

// A shard opened for reading: its header has been checked against the manifest's line.
class ShardReader {
 public:
  // kDataLoss: missing, of another size, or not the header that the manifest names. Other errors
  // are the disk's.
  static Result<std::unique_ptr<ShardReader>> Open(Files& files, const std::string& directory,
                                                   const ManifestFile& file);

  const ShardIndex& index() const { return index_; }
  const std::string& path() const { return path_; }

  // One chunk of a piece, verified (CKPT-6). `bytes` has the chunk's exact length. kDataLoss names
  // file, tensor and where.
  Status ReadChunk(const ShardPiece& piece, std::size_t chunk, std::span<std::byte> bytes);
  // The same, verified by Settle only, so that hashing goes on beside the next reads. `piece` is
  // one of index(); `bytes` must stay as they are until then, and count for nothing before.
  Status FetchChunk(const ShardPiece& piece, std::size_t chunk, std::span<std::byte> bytes);
  // The first damage among what was fetched since the last time.
  Status Settle();

  // A hint: the coming reads go from one place of the file to the other, in order.
  void Expect(std::int64_t from, std::int64_t to) { file_->Expect(from, to - from); }
  // Where a chunk begins in the file.
  std::int64_t PlaceOf(const ShardPiece& piece, std::size_t chunk) const;

 private:
  struct Fetched {
    const ShardPiece* piece = nullptr;
    std::size_t chunk = 0;
    std::uint64_t hash = 0;  // as found
  };

  ShardReader(std::unique_ptr<ReadableFile> file, std::string path, ShardIndex index)
      : file_(std::move(file)), path_(std::move(path)), index_(std::move(index)) {}
  Status Fill(const ShardPiece& piece, std::size_t chunk, std::span<std::byte> bytes);
  Status Compare(const ShardPiece& piece, std::size_t chunk, std::uint64_t hash) const;

  std::unique_ptr<ReadableFile> file_;
  std::string path_;
  ShardIndex index_;
  std::deque<Fetched> fetched_;  // stays in place: the lane writes into it
  HashLane hashes_;              // goes first
};

// The length of a chunk of a piece.
std::int64_t ChunkBytes(const ShardPiece& piece, std::size_t chunk);

}  // namespace perdure
