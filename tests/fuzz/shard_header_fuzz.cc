// The header of a shard: the safetensors header and the index in it.
#include <cstring>

#include "base/check.h"
#include "checkpoint/shard.h"
#include "fuzz/targets.h"

namespace perdure::fuzz {
namespace {

void TryHeader(const std::string& header, std::int64_t file_bytes) {
  const Result<ShardIndex> parsed = ParseShardHeader(header, file_bytes, "the-file");
  if (!parsed.ok()) {
    CheckRefusal(parsed.status());
    return;
  }
  const ShardIndex& index = *parsed;
  PERDURE_CHECK(index.data_start == static_cast<std::int64_t>(header.size()), "where data begins");
  std::int64_t end = 0;
  for (const ShardPiece& piece : index.pieces) {
    PERDURE_CHECK(piece.begin >= 0 && piece.begin <= piece.end, "a range");
    PERDURE_CHECK(index.data_start + piece.end <= file_bytes, "inside the file");
    PERDURE_CHECK(*ByteCount(piece.dtype, piece.shape) == piece.end - piece.begin, "its size");
    for (std::size_t chunk = 0; chunk < piece.chunk_hashes.size(); ++chunk) {
      const std::int64_t bytes = ChunkBytes(piece, chunk);
      PERDURE_CHECK(bytes > 0 && bytes <= kHashChunkBytes, "a chunk");
    }
    end = std::max(end, piece.end);
  }
  PERDURE_CHECK(index.data_start + end == file_bytes, "every byte belongs to a piece");
  const Result<std::string> again = FormatShardHeader(index.info, index.pieces);
  PERDURE_CHECK(again.ok(), again.status().message());
  const Result<ShardIndex> reread =
      ParseShardHeader(*again, static_cast<std::int64_t>(again->size()) + end, "the-file");
  PERDURE_CHECK(reread.ok(), reread.status().message());
  PERDURE_CHECK(reread->info == index.info && reread->pieces == index.pieces,
                "the same after writing and reading");
}

}  // namespace
}  // namespace perdure::fuzz

// The first two bytes say how much data follows the header.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::int64_t data_bytes = data[0] + 256 * data[1];
  std::string header(reinterpret_cast<const char*>(data) + 2, size - 2);
  perdure::fuzz::TryHeader(header, static_cast<std::int64_t>(header.size()) + data_bytes);
  if (header.size() < 8) return 0;
  // Most mutations change the length: once more with the right one.
  const std::uint64_t length = header.size() - 8;
  std::memcpy(header.data(), &length, sizeof(length));
  perdure::fuzz::TryHeader(header, static_cast<std::int64_t>(header.size()) + data_bytes);
  return 0;
}
