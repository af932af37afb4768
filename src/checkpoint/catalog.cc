#include "checkpoint/catalog.h"

#include <fmt/format.h>

#include "checkpoint/json.h"

namespace perdure {

Result<std::vector<CheckpointName>> ListCheckpoints(Files& files, const std::string& root) {
  PERDURE_ASSIGN_OR_RETURN(const std::vector<DirectoryEntry> entries, files.List(root));
  std::vector<CheckpointName> names;
  for (const DirectoryEntry& entry : entries) {
    if (entry.kind != FileKind::kDirectory) continue;
    std::optional<CheckpointName> name = ParseName(entry.name);
    if (name.has_value()) names.push_back(std::move(*name));
  }
  return names;
}

Result<LoadedManifest> LoadManifest(Files& files, const std::string& root,
                                    const CheckpointName& name, const std::string& root_id) {
  const std::string path = JoinPath(JoinPath(root, FormatName(name)), kManifestName);
  const Result<std::string> text = ReadWholeFile(files, path, kManifestBytesMax);
  if (text.status().code() == Code::kInvalidArgument) {
    return Status(Code::kDataLoss, text.status().message());
  }
  PERDURE_RETURN_IF_ERROR(text.status());
  LoadedManifest loaded;
  PERDURE_ASSIGN_OR_RETURN(loaded.digest, CheckSeal(*text, path));
  PERDURE_ASSIGN_OR_RETURN(loaded.manifest, ParseManifest(*text, path));
  const Manifest& manifest = loaded.manifest;
  if (manifest.id != name.id) {
    return Status(Code::kDataLoss,
                  fmt::format("{}: describes {}", path, CommittedName(manifest.id)));
  }
  if (manifest.root_id != root_id) {
    return Status(Code::kDataLoss,
                  fmt::format("{}: belongs to another checkpoint directory (root_id {})", path,
                              manifest.root_id));
  }
  return loaded;
}

namespace {

Status CheckSize(Files& files, const std::string& path, std::int64_t bytes) {
  const Result<FileInfo> info = files.Info(path);
  if (info.status().code() == Code::kNotFound) {
    return Status(Code::kDataLoss, fmt::format("{}: the file is missing", path));
  }
  PERDURE_RETURN_IF_ERROR(info.status());
  if (info->bytes == bytes) return Ok();
  return Status(Code::kDataLoss,
                fmt::format("{}: has {} bytes, the manifest says {}", path, info->bytes, bytes));
}

}  // namespace

Status CheckSizes(Files& files, const std::string& directory, const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) {
    PERDURE_RETURN_IF_ERROR(CheckSize(files, JoinPath(directory, file.name), file.bytes));
  }
  for (const auto& [part, of_part] : manifest.foreign) {
    const std::string of = JoinPath(JoinPath(directory, kForeignDirectory), part);
    for (const ForeignFile& file : of_part) {
      PERDURE_RETURN_IF_ERROR(CheckSize(files, JoinPath(of, file.name), file.bytes));
    }
  }
  return Ok();
}

}  // namespace perdure
