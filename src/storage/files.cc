#include "storage/files.h"

#include <fmt/format.h>

namespace perdure {

std::string JoinPath(std::string_view directory, std::string_view name) {
  const bool has_slash = !directory.empty() && directory.back() == '/';
  return fmt::format("{}{}{}", directory, has_slash ? "" : "/", name);
}

Result<std::string> ReadWholeFile(Files& files, const std::string& path, std::int64_t bytes_max) {
  PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, files.Open(path));
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t bytes, file->Size());
  if (bytes > bytes_max) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{} has {} bytes; at most {} make sense", path, bytes, bytes_max));
  }
  std::string text(static_cast<std::size_t>(bytes), '\0');
  PERDURE_RETURN_IF_ERROR(
      file->Read(0, std::as_writable_bytes(std::span<char>(text.data(), text.size()))));
  return text;
}

Status WriteWholeFile(Files& files, const std::string& path, std::string_view text) {
  PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.Create(path));
  Status status = file->Write(0, std::as_bytes(std::span<const char>(text.data(), text.size())));
  if (status.ok()) status = file->Sync();
  if (status.ok()) status = file->Close();
  // Best effort: the name is a temporary one that nobody reads.
  if (!status.ok()) static_cast<void>(files.Remove(path).ok());
  return status;
}

}  // namespace perdure
