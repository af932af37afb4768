#include "checkpoint/drill.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "checkpoint/foreign.h"
#include "checkpoint/hash.h"
#include "checkpoint/inspect.h"
#include "checkpoint/layout.h"
#include "checkpoint/reader.h"

namespace perdure {
namespace {

constexpr std::int64_t kDrillBatchBytes = std::int64_t{256} << 20;

// The bytes of a saved piece, cut out of the whole tensor.
Result<std::vector<std::byte>> CutOut(const Piece& whole, std::span<const std::byte> memory,
                                      const ShardPiece& piece) {
  const Box box{piece.offset, piece.shape};
  PERDURE_ASSIGN_OR_RETURN(const std::vector<ByteRun> runs,
                           RunsOf(piece.dtype, {whole.offset, whole.shape}, box, box));
  std::vector<std::byte> cut(static_cast<std::size_t>(piece.end - piece.begin));
  for (const ByteRun& run : runs) {
    std::memcpy(cut.data() + run.target, memory.data() + run.source,
                static_cast<std::size_t>(run.bytes));
  }
  return cut;
}

Status CheckPiece(const Piece& whole, std::span<const std::byte> memory, const ShardPiece& piece) {
  PERDURE_ASSIGN_OR_RETURN(const std::vector<std::byte> cut, CutOut(whole, memory, piece));
  for (std::size_t chunk = 0; chunk < piece.chunk_hashes.size(); ++chunk) {
    const std::size_t from = chunk * static_cast<std::size_t>(kHashChunkBytes);
    const auto bytes = std::span<const std::byte>(cut).subspan(
        from, static_cast<std::size_t>(ChunkBytes(piece, chunk)));
    if (Hash64(bytes) == piece.chunk_hashes[chunk]) continue;
    return Status(Code::kDataLoss,
                  fmt::format("{} {}: put together, its piece {} at {} is not what was saved",
                              whole.blob ? "blob" : "tensor", whole.name, ToString(piece.shape),
                              ToString(piece.offset)));
  }
  return Ok();
}

Structure EverythingIn(const Manifest& manifest) {
  Structure all;
  for (const auto& [name, facts] : manifest.TensorsByName()) all.push_back(WholePiece(name, facts));
  for (const auto& [name, bytes] : manifest.blobs) {
    all.push_back({name, true, DType::kU8, {bytes}, {0}, {bytes}});
  }
  return all;
}

Status DrillBatch(Files& files, Contents& contents, const Structure& batch, DrillReport& report) {
  std::vector<std::vector<std::byte>> memory;
  for (const Piece& piece : batch) {
    PERDURE_ASSIGN_OR_RETURN(const std::int64_t bytes, ByteCount(piece.dtype, piece.shape));
    memory.emplace_back(static_cast<std::size_t>(bytes));
    report.bytes += bytes;
  }
  PERDURE_RETURN_IF_ERROR(
      ReadPieces(files, contents.directory(), contents.manifest(), Rank(0), batch,
                 [&](std::size_t i) -> std::span<std::byte> { return memory[i]; })
          .status());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    for (const Contents::Place& place : contents.PiecesOf(batch[i].name)) {
      const Status checked = CheckPiece(batch[i], memory[i], place.piece);
      if (!checked.ok()) report.problems.push_back(checked.message());
    }
    ++(batch[i].blob ? report.blobs : report.tensors);
  }
  return Ok();
}

Status Drill(Files& files, const std::string& root, const CheckpointName& name,
             const WorkProgress& progress, DrillReport& report) {
  PERDURE_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(files, root, name));
  PERDURE_ASSIGN_OR_RETURN(Contents contents,
                           Contents::Load(files, JoinPath(root, report.name), std::move(manifest)));
  const Structure all = EverythingIn(contents.manifest());
  const std::int64_t total = contents.manifest().TotalBytes();
  for (std::size_t next = 0; next < all.size();) {
    Structure batch;
    std::int64_t bytes = 0;
    while (next < all.size() && bytes < kDrillBatchBytes) {
      PERDURE_ASSIGN_OR_RETURN(const std::int64_t size,
                               ByteCount(all[next].dtype, all[next].shape));
      if (!batch.empty() && bytes + size > kDrillBatchBytes) break;
      batch.push_back(all[next++]);
      bytes += size;
    }
    PERDURE_RETURN_IF_ERROR(DrillBatch(files, contents, batch, report));
    if (progress) progress(std::min(report.bytes, total), total);
  }
  for (const auto& [part, of_part] : contents.manifest().foreign) {
    for (const ForeignFile& file : of_part) {
      const Status read = VerifyForeignFile(files, contents.directory(), part, file);
      if (!read.ok()) report.problems.push_back(read.message());
    }
  }
  return Ok();
}

}  // namespace

DrillReport DrillRestore(Files& files, const std::string& root, const CheckpointName& name,
                         const WorkProgress& progress) {
  DrillReport report;
  report.name = FormatName(name);
  const Status done = Drill(files, root, name, progress, report);
  if (!done.ok()) report.problems.push_back(done.message());
  return report;
}

}  // namespace perdure
