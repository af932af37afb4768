#include "checkpoint/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/posix.h"
#include "checkpoint/inspect.h"
#include "checkpoint/json.h"
#include "checkpoint/layout.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"

namespace perdure {
namespace {

// Tensors are read in groups of about this size: one pass over the shards' headers per group.
constexpr std::int64_t kExportBatchBytes = std::int64_t{256} << 20;
// Leaves room for what surrounds the tensors.
constexpr std::int64_t kHeaderBytesPerFile = kSafetensorsHeaderBytesMax - 4096;
constexpr const char* kOneFileName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

struct Chosen {
  std::string short_name;
  std::string full_name;
  TensorFacts facts;
  std::int64_t bytes = 0;
};

std::string ParentOf(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
}

// In the order of their data in one file.
Result<std::vector<Chosen>> Choose(const Manifest& manifest, const ExportOptions& options) {
  std::vector<Chosen> chosen;
  std::string parts;
  for (const auto& [name, facts] : manifest.TensorsByName()) {
    const std::string part = name.substr(0, name.find('.'));
    if (parts.find("\"" + part + "\"") == std::string::npos) {
      parts += fmt::format("{}\"{}\"", parts.empty() ? "" : ", ", part);
    }
    PERDURE_ASSIGN_OR_RETURN(const std::int64_t bytes, ByteCount(facts.dtype, facts.shape));
    if (!options.part.has_value()) {
      chosen.push_back({name, name, facts, bytes});
    } else if (part == *options.part) {
      chosen.push_back({name.substr(part.size() + 1), name, facts, bytes});
    }
  }
  if (chosen.empty() && options.part.has_value()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("the checkpoint has no tensors in part \"{}\"; it has: {}",
                              *options.part, parts));
  }
  std::sort(chosen.begin(), chosen.end(), [](const Chosen& a, const Chosen& b) {
    return DataOrder(a.facts.dtype, a.short_name, b.facts.dtype, b.short_name);
  });
  return chosen;
}

// More than a tensor takes in a header.
std::int64_t HeaderBytesOf(const Chosen& tensor) {
  return static_cast<std::int64_t>(QuoteJson(tensor.short_name).size() +
                                   20 * tensor.facts.shape.size() + 100);
}

// Consecutive tensors per file, each file as full as the limits allow.
std::vector<std::vector<Chosen>> Split(std::vector<Chosen> chosen, std::int64_t bytes_max) {
  std::vector<std::vector<Chosen>> split(1);
  std::int64_t bytes = 0;
  std::int64_t header_bytes = 0;
  for (Chosen& tensor : chosen) {
    const bool full = bytes + tensor.bytes > bytes_max ||
                      header_bytes + HeaderBytesOf(tensor) > kHeaderBytesPerFile;
    if (bytes_max > 0 && !split.back().empty() && full) {
      split.emplace_back();
      bytes = 0;
      header_bytes = 0;
    }
    bytes += tensor.bytes;
    header_bytes += HeaderBytesOf(tensor);
    split.back().push_back(std::move(tensor));
  }
  return split;
}

// One export: what it has made so far, to be published as a whole or taken back.
class Exporter {
 public:
  Exporter(Files& files, std::string directory, const Manifest& manifest,
           const WorkProgress& progress, std::int64_t total)
      : files_(files),
        directory_(std::move(directory)),
        manifest_(manifest),
        progress_(progress),
        total_(total) {}

  ~Exporter() {
    for (const auto& [temp, path] : made_) static_cast<void>(files_.Remove(temp).ok());
    for (const std::string& path : published_) static_cast<void>(files_.Remove(path).ok());
  }
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  // Under a temporary name, durable.
  Status AddTensors(const std::string& path, const std::vector<Chosen>& tensors) {
    std::vector<SafetensorsEntry> entries;
    std::int64_t at = 0;
    for (const Chosen& tensor : tensors) {
      entries.push_back(
          {tensor.short_name, tensor.facts.dtype, tensor.facts.shape, at, at + tensor.bytes});
      at += tensor.bytes;
    }
    // Without "format" the loaders of Hugging Face's transformers refuse a file.
    const Result<std::string> formatted = FormatSafetensorsHeader(entries, {{"format", "pt"}});
    if (!formatted.ok()) {
      return formatted.status().WithContext("one file cannot hold it (set a size per file)");
    }
    const std::string& header = *formatted;
    PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, Begin(path));
    PERDURE_RETURN_IF_ERROR(
        file->Write(0, std::as_bytes(std::span<const char>(header.data(), header.size()))));
    PERDURE_RETURN_IF_ERROR(WriteTensors(tensors, static_cast<std::int64_t>(header.size()), *file));
    bytes_ += static_cast<std::int64_t>(header.size()) + at;
    PERDURE_RETURN_IF_ERROR(file->Sync());
    return file->Close();
  }

  Status AddText(const std::string& path, const std::string& text) {
    PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, Begin(path));
    PERDURE_RETURN_IF_ERROR(
        file->Write(0, std::as_bytes(std::span<const char>(text.data(), text.size()))));
    bytes_ += static_cast<std::int64_t>(text.size());
    PERDURE_RETURN_IF_ERROR(file->Sync());
    return file->Close();
  }

  // Everything gets its name, in the order in which it was added.
  Status Publish() {
    while (!made_.empty()) {
      const auto& [temp, path] = made_.front();
      PERDURE_RETURN_IF_ERROR(files_.Rename(temp, path, Files::Replace::kNo));
      published_.push_back(path);
      made_.erase(made_.begin());
    }
    PERDURE_RETURN_IF_ERROR(files_.SyncDirectory(ParentOf(published_.front())));
    published_.clear();
    return Ok();
  }

  std::int64_t bytes() const { return bytes_; }

 private:
  Result<std::unique_ptr<WritableFile>> Begin(const std::string& path) {
    const std::string temp = fmt::format("{}.tmp-{}", path, RandomHex(4));
    PERDURE_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files_.Create(temp));
    made_.emplace_back(temp, path);
    return file;
  }

  Status WriteTensors(const std::vector<Chosen>& tensors, std::int64_t offset, WritableFile& file) {
    for (std::size_t next = 0; next < tensors.size();) {
      Structure batch;
      std::vector<std::vector<std::byte>> memory;
      std::int64_t bytes = 0;
      while (next < tensors.size() && (batch.empty() || bytes < kExportBatchBytes)) {
        const Chosen& tensor = tensors[next++];
        batch.push_back(WholePiece(tensor.full_name, tensor.facts));
        memory.emplace_back(static_cast<std::size_t>(tensor.bytes));
        bytes += tensor.bytes;
      }
      PERDURE_RETURN_IF_ERROR(
          ReadPieces(files_, directory_, manifest_, Rank(0), batch,
                     [&](std::size_t i) -> std::span<std::byte> { return memory[i]; })
              .status());
      for (const std::vector<std::byte>& tensor : memory) {
        if (tensor.empty()) continue;
        PERDURE_RETURN_IF_ERROR(file.Write(offset, tensor));
        offset += static_cast<std::int64_t>(tensor.size());
      }
      done_ += bytes;
      if (progress_) progress_(done_, total_);
    }
    return Ok();
  }

  Files& files_;
  const std::string directory_;
  const Manifest& manifest_;
  const WorkProgress& progress_;
  const std::int64_t total_;
  std::int64_t done_ = 0;
  std::int64_t bytes_ = 0;
  std::vector<std::pair<std::string, std::string>> made_;  // (temporary name, final name)
  std::vector<std::string> published_;
};

std::string FormatIndex(const std::vector<std::vector<Chosen>>& split,
                        const std::vector<std::string>& names, std::int64_t total) {
  std::map<std::string, std::string> file_of;
  for (std::size_t i = 0; i < split.size(); ++i) {
    for (const Chosen& tensor : split[i]) file_of[tensor.short_name] = names[i];
  }
  std::string text = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total);
  const char* separator = "";
  for (const auto& [tensor, file] : file_of) {
    text += fmt::format("{}\n    {}: {}", separator, QuoteJson(tensor), QuoteJson(file));
    separator = ",";
  }
  return text + "\n  }\n}\n";
}

Status CheckFree(Files& files, const std::string& path) {
  const Status there = files.Info(path).status();
  if (there.code() == Code::kNotFound) return Ok();
  PERDURE_RETURN_IF_ERROR(there);
  return Status(Code::kAlreadyExists, fmt::format("{} exists; name another place", path));
}

// Before anything is read: is there room for the names? True: `out` is a directory.
Result<bool> PrepareOut(Files& files, const std::string& out, bool want_directory) {
  const Result<FileInfo> there = files.Info(out);
  if (!there.ok() && there.status().code() != Code::kNotFound) return there.status();
  if (there.ok() && there->kind != FileKind::kDirectory) {
    return Status(Code::kAlreadyExists,
                  want_directory ? fmt::format("{} is a file; name a directory for the files", out)
                                 : fmt::format("{} exists; name another place", out));
  }
  if (!there.ok() && !want_directory) return false;
  if (!there.ok()) {
    PERDURE_RETURN_IF_ERROR(files.MakeDirectory(out));
    PERDURE_RETURN_IF_ERROR(files.SyncDirectory(ParentOf(out)));
  }
  PERDURE_RETURN_IF_ERROR(CheckFree(files, JoinPath(out, kOneFileName)));
  PERDURE_RETURN_IF_ERROR(CheckFree(files, JoinPath(out, kIndexName)));
  return true;
}

}  // namespace

Result<ExportReport> ExportCheckpoint(Files& files, const std::string& root,
                                      const CheckpointName& name, const ExportOptions& options,
                                      const std::string& out, const WorkProgress& progress) {
  PERDURE_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(files, root, name));
  PERDURE_ASSIGN_OR_RETURN(std::vector<Chosen> chosen, Choose(manifest, options));
  ExportReport report;
  report.tensors = static_cast<std::int64_t>(chosen.size());
  std::int64_t total = 0;
  for (const Chosen& tensor : chosen) total += tensor.bytes;
  const auto split = Split(std::move(chosen), options.shard_bytes_max);

  PERDURE_ASSIGN_OR_RETURN(const bool into_directory,
                           PrepareOut(files, out, options.shard_bytes_max > 0));
  Exporter exporter(files, JoinPath(root, FormatName(name)), manifest, progress, total);
  if (split.size() == 1) {
    report.path = into_directory ? JoinPath(out, kOneFileName) : out;
    report.files.push_back(report.path);
    PERDURE_RETURN_IF_ERROR(exporter.AddTensors(report.path, split[0]));
  } else {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < split.size(); ++i) {
      names.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, split.size()));
      report.files.push_back(JoinPath(out, names.back()));
      PERDURE_RETURN_IF_ERROR(CheckFree(files, report.files.back()));
    }
    for (std::size_t i = 0; i < split.size(); ++i) {
      PERDURE_RETURN_IF_ERROR(exporter.AddTensors(report.files[i], split[i]));
    }
    report.path = JoinPath(out, kIndexName);
    PERDURE_RETURN_IF_ERROR(exporter.AddText(report.path, FormatIndex(split, names, total)));
  }
  PERDURE_RETURN_IF_ERROR(exporter.Publish());
  report.bytes = exporter.bytes();
  return report;
}

}  // namespace perdure
