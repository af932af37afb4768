#include "checkpoint/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/check.h"
#include "checkpoint/damage.h"
#include "checkpoint/hash.h"
#include "checkpoint/hash_lane.h"
#include "checkpoint/json.h"
#include "checkpoint/names.h"
#include "checkpoint/safetensors.h"

namespace perdure {
namespace {

using Json = nlohmann::json;

constexpr const char* kIndexKey = "perdure";
// Room is set aside for files of at least this size: smaller ones gain nothing.
constexpr std::int64_t kReserveFromBytes = std::int64_t{1} << 20;

std::size_t ChunkCount(std::int64_t bytes) {
  return static_cast<std::size_t>((bytes + kHashChunkBytes - 1) / kHashChunkBytes);
}

// One more index entry: {"global_shape":[…],"offset":[…],"xxh3_64":"…"}.
std::string FormatPiece(const ShardPiece& piece) {
  std::string hashes;
  hashes.reserve(16 * ChunkCount(piece.end - piece.begin));
  for (std::size_t chunk = 0; chunk < ChunkCount(piece.end - piece.begin); ++chunk) {
    hashes += Hex64(chunk < piece.chunk_hashes.size() ? piece.chunk_hashes[chunk] : 0);
  }
  return fmt::format("{}:{{{}\"global_shape\":{},\"offset\":{},\"xxh3_64\":\"{}\"}}",
                     QuoteJson(piece.name), piece.blob ? "\"blob\":true," : "",
                     FormatShape(piece.global_shape), FormatShape(piece.offset), hashes);
}

// At most so much of the header is not about a piece, the padding included.
constexpr std::int64_t kHeaderFrameBytes = 2 * kShardDataAlignment;

// What a piece adds to the header, or a little more: `begin` and `end` are not known yet.
std::int64_t HeaderBytesMaxOf(ShardPiece piece) {
  constexpr std::int64_t kPunctuation = 64;
  constexpr std::int64_t kDigits = 2 * 20;
  const Result<std::int64_t> bytes = ByteCount(piece.dtype, piece.shape);
  piece.begin = 0;
  piece.end = bytes.ok() ? *bytes : 0;  // LayOut tells of it
  // The index is JSON in a JSON string, so its quotation marks are escaped.
  return static_cast<std::int64_t>(QuoteJson(FormatPiece(piece)).size() +
                                   QuoteJson(piece.name).size() + FormatShape(piece.shape).size()) +
         kPunctuation + kDigits;
}

void SortByData(std::vector<ShardContent>& contents) {
  std::sort(contents.begin(), contents.end(), [](const ShardContent& a, const ShardContent& b) {
    return DataOrder(a.piece.dtype, a.piece.name, b.piece.dtype, b.piece.name);
  });
}

Status ParseHashes(const std::string& hex, std::size_t count, const std::string& what,
                   std::vector<std::uint64_t>& hashes) {
  if (hex.size() != 16 * count || hex.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return Damaged(what, fmt::format("needs {} hashes of 16 hex digits", count));
  }
  for (std::size_t i = 0; i < count; ++i) {
    hashes.push_back(std::stoull(hex.substr(16 * i, 16), nullptr, 16));
  }
  return Ok();
}

Result<ShardPiece> ParsePiece(const SafetensorsEntry& entry, const Json& json,
                              const std::string& what) {
  const std::string of_piece = fmt::format("{}: tensor {}", what, entry.name);
  ShardPiece piece;
  piece.name = entry.name;
  piece.dtype = entry.dtype;
  piece.shape = entry.shape;
  piece.begin = entry.begin;
  piece.end = entry.end;
  piece.blob = json.is_object() && json.contains("blob");
  PERDURE_ASSIGN_OR_RETURN(piece.global_shape, JsonShape(json, "global_shape", of_piece));
  PERDURE_ASSIGN_OR_RETURN(piece.offset, JsonShape(json, "offset", of_piece));
  if (piece.global_shape.size() != piece.shape.size() ||
      piece.offset.size() != piece.shape.size()) {
    return Damaged(of_piece, "shape, global shape and offset differ in their number of extents");
  }
  for (std::size_t i = 0; i < piece.shape.size(); ++i) {
    if (piece.shape[i] > piece.global_shape[i] ||
        piece.offset[i] > piece.global_shape[i] - piece.shape[i]) {
      return Damaged(of_piece, "reaches beyond its global shape");
    }
  }
  PERDURE_ASSIGN_OR_RETURN(const std::string hashes, JsonText(json, "xxh3_64", of_piece));
  PERDURE_RETURN_IF_ERROR(
      ParseHashes(hashes, ChunkCount(piece.end - piece.begin), of_piece, piece.chunk_hashes));
  return piece;
}

// Collects small pieces into writes of a useful size, and passes large ones through.
class BufferedWriter {
 public:
  BufferedWriter(WritableFile& file, std::int64_t offset) : file_(file), offset_(offset) {
    buffer_.reserve(static_cast<std::size_t>(kHashChunkBytes));
  }

  Status Append(std::span<const std::byte> bytes) {
    if (buffer_.size() + bytes.size() > static_cast<std::size_t>(kHashChunkBytes)) {
      PERDURE_RETURN_IF_ERROR(Flush());
    }
    if (buffer_.empty() && bytes.size() >= static_cast<std::size_t>(kHashChunkBytes)) {
      return Put(bytes);
    }
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    return Ok();
  }

  Status Flush() {
    PERDURE_RETURN_IF_ERROR(Put(buffer_));
    buffer_.clear();
    return Ok();
  }

  std::int64_t offset() const { return offset_; }

 private:
  Status Put(std::span<const std::byte> bytes) {
    if (bytes.empty()) return Ok();
    PERDURE_RETURN_IF_ERROR(file_.Write(offset_, bytes));
    offset_ += static_cast<std::int64_t>(bytes.size());
    return Ok();
  }

  WritableFile& file_;
  std::int64_t offset_;
  std::vector<std::byte> buffer_;
};

}  // namespace

Status LayOut(std::vector<ShardPiece>& pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const ShardPiece& a, const ShardPiece& b) {
    return DataOrder(a.dtype, a.name, b.dtype, b.name);
  });
  std::int64_t at = 0;
  for (ShardPiece& piece : pieces) {
    PERDURE_ASSIGN_OR_RETURN(const std::int64_t bytes, ByteCount(piece.dtype, piece.shape));
    piece.begin = at;
    piece.end = at + bytes;
    at = piece.end;
  }
  return Ok();
}

Result<std::string> FormatShardHeader(const ShardInfo& info,
                                      const std::vector<ShardPiece>& pieces) {
  std::string index = fmt::format(
      "{{\"format_version\":1,\"generation\":{},\"step\":{},\"attempt\":{},\"rank\":{},\"world\":{}"
      ","
      "\"chunk_bytes\":{},\"pieces\":{{",
      info.id.generation.value(), info.id.step.value(), QuoteJson(info.attempt), info.rank.value(),
      info.world, kHashChunkBytes);
  std::vector<SafetensorsEntry> entries;
  const char* separator = "";
  for (const ShardPiece& piece : pieces) {
    index += separator;
    index += FormatPiece(piece);
    separator = ",";
    entries.push_back({piece.name, piece.dtype, piece.shape, piece.begin, piece.end});
  }
  index += "}}";
  return FormatSafetensorsHeader(entries, {{kIndexKey, index}});
}

Result<ShardIndex> ParseShardHeader(std::string_view header, std::int64_t file_bytes,
                                    const std::string& what) {
  if (header.size() < 8) return Damaged(what, "too short for a safetensors file");
  PERDURE_ASSIGN_OR_RETURN(
      const std::int64_t length,
      ParseSafetensorsLength(std::as_bytes(std::span<const char>(header.data(), 8)), file_bytes,
                             what));
  if (length + 8 != static_cast<std::int64_t>(header.size())) {
    return Damaged(what, "the header's stated length is not where the data begins");
  }
  PERDURE_ASSIGN_OR_RETURN(const SafetensorsHeader parsed,
                           ParseSafetensorsHeader(header.substr(8), file_bytes, what));
  if (parsed.metadata.size() != 1 || parsed.metadata[0].first != kIndexKey) {
    return Damaged(what, "is not a shard of a Perdure checkpoint (no \"perdure\" in __metadata__)");
  }
  const std::string of_index = what + ": index";
  PERDURE_ASSIGN_OR_RETURN(const Json json, ParseJson(parsed.metadata[0].second, of_index));
  PERDURE_RETURN_IF_ERROR(JsonFormatVersion(json, /*newest=*/1, of_index).status());
  ShardIndex shard;
  shard.data_start = parsed.data_start;
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t generation, JsonCount(json, "generation", of_index));
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t step, JsonCount(json, "step", of_index));
  shard.info.id = {Generation(generation), Step(step)};
  PERDURE_ASSIGN_OR_RETURN(shard.info.attempt, JsonText(json, "attempt", of_index));
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t rank, JsonCount(json, "rank", of_index));
  shard.info.rank = Rank(rank);
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t world, JsonCount(json, "world", of_index));
  if (world < 1 || world > INT32_MAX) return Damaged(of_index, "\"world\" is out of range");
  shard.info.world = static_cast<int>(world);
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t chunk_bytes,
                           JsonCount(json, "chunk_bytes", of_index));
  if (chunk_bytes != kHashChunkBytes) return Damaged(of_index, "\"chunk_bytes\" is not 4194304");
  PERDURE_ASSIGN_OR_RETURN(const Json* const pieces,
                           JsonMember(json, "pieces", Json::value_t::object, of_index));
  if (pieces->size() != parsed.entries.size()) {
    return Damaged(of_index, fmt::format("describes {} pieces, the file has {} tensors",
                                         pieces->size(), parsed.entries.size()));
  }
  for (const SafetensorsEntry& entry : parsed.entries) {
    const auto found = pieces->find(entry.name);
    if (found == pieces->end()) {
      return Damaged(of_index, fmt::format("does not describe tensor {}", entry.name));
    }
    PERDURE_ASSIGN_OR_RETURN(ShardPiece piece, ParsePiece(entry, *found, of_index));
    shard.pieces.push_back(std::move(piece));
  }
  return shard;
}

Result<std::vector<ManifestFile>> WriteShards(Files& files, const std::string& directory,
                                              const ShardInfo& info,
                                              std::vector<ShardContent> contents,
                                              std::int64_t header_bytes_max) {
  SortByData(contents);
  std::vector<ManifestFile> written;
  for (std::size_t next = 0; next < contents.size() || written.empty();) {
    // At least one, which is then refused if it is too much by itself.
    std::int64_t header_bytes = kHeaderFrameBytes;
    std::vector<ShardContent> part;
    while (next < contents.size()) {
      header_bytes += HeaderBytesMaxOf(contents[next].piece);
      if (!part.empty() && header_bytes > header_bytes_max) break;
      part.push_back(std::move(contents[next++]));
    }
    PERDURE_ASSIGN_OR_RETURN(ManifestFile file, WriteShard(files, directory, info, std::move(part),
                                                           static_cast<int>(written.size()) + 1));
    written.push_back(std::move(file));
  }
  return written;
}

Result<ManifestFile> WriteShard(Files& files, const std::string& directory, const ShardInfo& info,
                                std::vector<ShardContent> contents, int part) {
  SortByData(contents);
  std::vector<ShardPiece> pieces;
  pieces.reserve(contents.size());
  for (const ShardContent& content : contents) pieces.push_back(content.piece);
  PERDURE_RETURN_IF_ERROR(LayOut(pieces));
  PERDURE_ASSIGN_OR_RETURN(const std::string empty_header, FormatShardHeader(info, pieces));

  const std::string name = ShardName(info.rank, info.world, part);
  const std::string path = JoinPath(directory, name);
  PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.Create(path));
  const std::int64_t data_bytes = pieces.empty() ? 0 : pieces.back().end;
  if (data_bytes >= kReserveFromBytes) {
    PERDURE_RETURN_IF_ERROR(
        file->Reserve(static_cast<std::int64_t>(empty_header.size()) + data_bytes));
  }
  BufferedWriter writer(*file, static_cast<std::int64_t>(empty_header.size()));
  HashLane hashes;
  std::vector<std::byte> slice;
  for (std::size_t i = 0; i < contents.size(); ++i) {
    const std::int64_t size = pieces[i].end - pieces[i].begin;
    PERDURE_CHECK(contents[i].read || static_cast<std::int64_t>(contents[i].bytes.size()) == size,
                  "a piece is as large as its shape says");
    // In place from here on: the lane fills the hashes in.
    pieces[i].chunk_hashes.assign(ChunkCount(size), 0);
    std::uint64_t* hash = pieces[i].chunk_hashes.data();
    for (std::int64_t at = 0; at < size; at += kHashChunkBytes, ++hash) {
      const auto bytes = static_cast<std::size_t>(std::min(kHashChunkBytes, size - at));
      std::span<const std::byte> chunk;
      if (contents[i].read) {
        slice.resize(bytes);
        PERDURE_RETURN_IF_ERROR(contents[i].read(at, slice));
        chunk = slice;
        *hash = Hash64(chunk);  // the slice is used again
      } else {
        chunk = contents[i].bytes.subspan(static_cast<std::size_t>(at), bytes);
        hashes.Add(chunk, hash);
      }
      PERDURE_RETURN_IF_ERROR(writer.Append(chunk));
    }
  }
  PERDURE_RETURN_IF_ERROR(writer.Flush());
  hashes.Finish();

  PERDURE_ASSIGN_OR_RETURN(const std::string header, FormatShardHeader(info, pieces));
  PERDURE_CHECK(header.size() == empty_header.size(), "hashes do not change a header's length");
  PERDURE_RETURN_IF_ERROR(
      file->Write(0, std::as_bytes(std::span<const char>(header.data(), header.size()))));
  PERDURE_RETURN_IF_ERROR(file->Sync());
  PERDURE_RETURN_IF_ERROR(file->Close());
  PERDURE_RETURN_IF_ERROR(files.SyncDirectory(directory));
  return ManifestFile{name, writer.offset(), static_cast<std::int64_t>(header.size()),
                      Digest(header)};
}

Result<std::unique_ptr<ShardReader>> ShardReader::Open(Files& files, const std::string& directory,
                                                       const ManifestFile& expected) {
  const std::string path = JoinPath(directory, expected.name);
  Result<std::unique_ptr<ReadableFile>> file = files.Open(path);
  if (!file.ok() && file.status().code() == Code::kNotFound)
    return Damaged(path, "the file is missing");
  PERDURE_RETURN_IF_ERROR(file.status());
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t bytes, (*file)->Size());
  if (bytes != expected.bytes) {
    return Damaged(path, fmt::format("has {} bytes, the manifest says {}", bytes, expected.bytes));
  }
  if (expected.header_bytes > kSafetensorsHeaderBytesMax + 8) {
    return Damaged(path, "the manifest states a header beyond the format's limit");
  }
  std::string header(static_cast<std::size_t>(expected.header_bytes), '\0');
  PERDURE_RETURN_IF_ERROR(
      (*file)->Read(0, std::as_writable_bytes(std::span<char>(header.data(), header.size()))));
  if (Digest(header) != expected.header_digest) {
    return Damaged(path, "its header is not the one that the manifest names");
  }
  PERDURE_ASSIGN_OR_RETURN(ShardIndex index, ParseShardHeader(header, bytes, path));
  return std::unique_ptr<ShardReader>(
      new ShardReader(std::move(file).value(), path, std::move(index)));
}

std::int64_t ChunkBytes(const ShardPiece& piece, std::size_t chunk) {
  const std::int64_t from = static_cast<std::int64_t>(chunk) * kHashChunkBytes;
  return std::min(kHashChunkBytes, piece.end - piece.begin - from);
}

Status ShardReader::Fill(const ShardPiece& piece, std::size_t chunk, std::span<std::byte> bytes) {
  PERDURE_CHECK(static_cast<std::int64_t>(bytes.size()) == ChunkBytes(piece, chunk),
                "a chunk is read whole");
  return file_->Read(PlaceOf(piece, chunk), bytes);
}

std::int64_t ShardReader::PlaceOf(const ShardPiece& piece, std::size_t chunk) const {
  return index_.data_start + piece.begin + static_cast<std::int64_t>(chunk) * kHashChunkBytes;
}

Status ShardReader::Compare(const ShardPiece& piece, std::size_t chunk, std::uint64_t hash) const {
  if (hash == piece.chunk_hashes[chunk]) return Ok();
  const std::int64_t from = static_cast<std::int64_t>(chunk) * kHashChunkBytes;
  return Damaged(path_, fmt::format("{} {}: its bytes {} to {} are not those that were written",
                                    piece.blob ? "blob" : "tensor", piece.name, from,
                                    from + ChunkBytes(piece, chunk)));
}

Status ShardReader::ReadChunk(const ShardPiece& piece, std::size_t chunk,
                              std::span<std::byte> bytes) {
  PERDURE_RETURN_IF_ERROR(Fill(piece, chunk, bytes));
  return Compare(piece, chunk, Hash64(bytes));
}

Status ShardReader::FetchChunk(const ShardPiece& piece, std::size_t chunk,
                               std::span<std::byte> bytes) {
  PERDURE_RETURN_IF_ERROR(Fill(piece, chunk, bytes));
  fetched_.push_back({&piece, chunk, 0});
  hashes_.Add(bytes, &fetched_.back().hash);
  return Ok();
}

Status ShardReader::Settle() {
  hashes_.Finish();
  Status damage;
  for (const Fetched& fetched : fetched_) {
    if (!damage.ok()) break;
    damage = Compare(*fetched.piece, fetched.chunk, fetched.hash);
  }
  fetched_.clear();
  return damage;
}

}  // namespace perdure
