#include "checkpoint/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <memory>
#include <utility>

#include "checkpoint/catalog.h"
#include "checkpoint/foreign.h"
#include "checkpoint/pins.h"
#include "checkpoint/shard.h"
#include "storage/file_store.h"

namespace perdure {
namespace {

CheckpointSummary Summarize(Files& files, const std::string& root, const std::string& root_id,
                            const Lineage& lineage, const CheckpointName& name) {
  CheckpointSummary summary;
  summary.name = FormatName(name);
  summary.id = name.id;
  if (name.kind == NameKind::kAttempt) {
    summary.kind = "attempt";
    return summary;
  }
  summary.kind = name.kind == NameKind::kCommitted ? "committed" : "trash";
  if (name.kind == NameKind::kTrashedAttempt) return summary;
  const Result<LoadedManifest> loaded = LoadManifest(files, root, name, root_id);
  if (!loaded.ok()) {
    if (loaded.status().code() == Code::kNotFound) summary.kind = "foreign";
    summary.problem = loaded.status().message();
    return summary;
  }
  const Manifest& manifest = loaded->manifest;
  summary.bytes = manifest.TotalBytes();
  summary.world = manifest.world;
  summary.created = manifest.created;
  summary.on_lineage = Contains(lineage, name.id);
  summary.problem = CheckSizes(files, JoinPath(root, summary.name), manifest).message();
  return summary;
}

}  // namespace

Result<RootFile> RootOf(Files& files, const std::string& root) {
  FileStore store(files, root);
  Result<RootFile> file = ReadRootFile(store);
  if (file.status().code() == Code::kNotFound) {
    return Status(Code::kNotFound, fmt::format("{} is not a checkpoint directory (it has no {})",
                                               root, kRootFileName));
  }
  return file;
}

Result<Lineage> HeadLineage(Files& files, const std::string& root) {
  FileStore store(files, root);
  PERDURE_ASSIGN_OR_RETURN(const std::vector<Fork> forks, ReadForks(store));
  const std::optional<Generation> head = HeadOf(forks);
  if (!head.has_value()) return Lineage();
  return LineageOf(*head, forks);
}

Piece WholePiece(const std::string& name, const TensorFacts& facts) {
  return {name, false, facts.dtype, facts.shape, Shape(facts.shape.size(), 0), facts.shape};
}

std::optional<std::int64_t> AgeSeconds(const CheckpointSummary& summary, WallTime now) {
  std::tm utc{};
  // As FormatWallTime writes it; the fraction does not matter here.
  if (::strptime(summary.created.c_str(), "%Y-%m-%dT%H:%M:%S", &utc) == nullptr) {
    return std::nullopt;
  }
  const WallTime created = std::chrono::system_clock::from_time_t(::timegm(&utc));
  return std::chrono::duration_cast<std::chrono::seconds>(now - created).count();
}

Result<std::vector<CheckpointSummary>> ListForPeople(Files& files, const std::string& root) {
  PERDURE_ASSIGN_OR_RETURN(const RootFile file, RootOf(files, root));
  PERDURE_ASSIGN_OR_RETURN(const Lineage lineage, HeadLineage(files, root));
  PERDURE_ASSIGN_OR_RETURN(const std::vector<CheckpointName> names, ListCheckpoints(files, root));
  FileStore store(files, root);
  PERDURE_ASSIGN_OR_RETURN(const auto pins, ReadPins(store));
  std::vector<CheckpointSummary> summaries;
  for (const CheckpointName& name : names) {
    summaries.push_back(Summarize(files, root, file.root_id, lineage, name));
    const auto pin = pins.find(CommittedName(name.id));
    if (pin == pins.end() || summaries.back().kind != "committed") continue;
    summaries.back().pinned = true;
    summaries.back().pin_reason = pin->second.reason;
  }
  std::stable_sort(summaries.begin(), summaries.end(),
                   [](const CheckpointSummary& a, const CheckpointSummary& b) {
                     return NewerOnLineage(a.id, b.id);
                   });
  return summaries;
}

Result<CheckpointName> FindCheckpoint(Files& files, const std::string& root,
                                      const std::string& which) {
  PERDURE_ASSIGN_OR_RETURN(const std::vector<CheckpointSummary> all, ListForPeople(files, root));
  std::string there;
  for (const CheckpointSummary& summary : all) {
    const std::optional<CheckpointName> name = ParseName(summary.name);
    const bool whole = summary.kind == "committed" || summary.kind == "trash";
    if (!name.has_value() || !whole || name->kind == NameKind::kTrashedAttempt) continue;
    if (summary.name == which) return *name;
    if (which.empty() && summary.on_lineage && summary.problem.empty()) return *name;
    if (which == std::to_string(summary.id.step.value()) && summary.on_lineage) return *name;
    there += fmt::format("{}{}", there.empty() ? "" : ", ", summary.name);
  }
  return Status(Code::kNotFound, fmt::format("{} has no checkpoint{}{}; it has: {}", root,
                                             which.empty() ? " that can be restored" : " ", which,
                                             there.empty() ? "none" : there));
}

Result<Manifest> ReadManifest(Files& files, const std::string& root, const CheckpointName& name) {
  PERDURE_ASSIGN_OR_RETURN(const RootFile file, RootOf(files, root));
  PERDURE_ASSIGN_OR_RETURN(LoadedManifest loaded, LoadManifest(files, root, name, file.root_id));
  return std::move(loaded.manifest);
}

VerifyReport VerifyCheckpoint(Files& files, const std::string& root, const CheckpointName& name,
                              const WorkProgress& progress) {
  VerifyReport report;
  report.name = FormatName(name);
  const std::string directory = JoinPath(root, report.name);
  const Result<Manifest> manifest = ReadManifest(files, root, name);
  if (!manifest.ok()) {
    report.problems.push_back(manifest.status().message());
    return report;
  }
  // What was found of each name; a tensor must be there whole.
  std::map<std::string, Coverage> found;
  for (const ManifestFile& file : manifest->files) {
    const Result<std::unique_ptr<ShardReader>> shard = ShardReader::Open(files, directory, file);
    if (!shard.ok()) {
      report.problems.push_back(shard.status().message());
      continue;
    }
    report.bytes += (*shard)->index().data_start;
    (*shard)->Expect((*shard)->index().data_start, file.bytes);
    std::vector<std::byte> chunk_bytes;
    for (const ShardPiece& piece : (*shard)->index().pieces) {
      found.try_emplace(piece.name, piece.global_shape)
          .first->second.Add({piece.offset, piece.shape});
      for (std::size_t chunk = 0; chunk < piece.chunk_hashes.size(); ++chunk) {
        chunk_bytes.resize(static_cast<std::size_t>(ChunkBytes(piece, chunk)));
        const Status read = (*shard)->ReadChunk(piece, chunk, chunk_bytes);
        if (!read.ok()) report.problems.push_back(read.message());
        report.bytes += ChunkBytes(piece, chunk);
        if (progress) progress(report.bytes, manifest->TotalBytes());
      }
    }
  }
  for (const auto& [part, of_part] : manifest->foreign) {
    for (const ForeignFile& file : of_part) {
      const Status read = VerifyForeignFile(files, directory, part, file);
      if (!read.ok()) report.problems.push_back(read.message());
      report.bytes += file.bytes;
      if (progress) progress(report.bytes, manifest->TotalBytes());
    }
  }
  if (!report.problems.empty()) return report;
  const auto elements_of = [&](const std::string& wanted) {
    const auto it = found.find(wanted);
    return it == found.end() ? -1 : it->second.elements();
  };
  for (const auto& [tensor, facts] : manifest->tensors) {
    const std::int64_t whole = VolumeOf({{}, facts.shape});
    if (elements_of(tensor) == whole) continue;
    report.problems.push_back(fmt::format("{}: tensor {}: its files hold {} of {} elements",
                                          directory, tensor,
                                          std::max<std::int64_t>(0, elements_of(tensor)), whole));
  }
  for (const auto& [blob, bytes] : manifest->blobs) {
    if (elements_of(blob) == bytes) continue;
    report.problems.push_back(fmt::format("{}: blob {}: its files hold {} of {} bytes", directory,
                                          blob, std::max<std::int64_t>(0, elements_of(blob)),
                                          bytes));
  }
  return report;
}

}  // namespace perdure
