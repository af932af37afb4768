// How a value comes to be:
//   1 the directories on its way exist, each durable before the next
//   2 temporary file, fsync
//   3 Put: rename() over the name. Create: link() to the name, which fails when it exists, also on
//     NFS; the temporary file is removed. After any error of link() what is there decides: a
//     network file system may report a failure of what took effect
//   4 fsync of the directory, and of those above it down from the store's: a process that died
//     between making a directory and syncing it has left a name that only looks durable
// It is whole and durable, or not there. A crash leaves a temporary file at most.
#include "storage/file_store.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/posix.h"

namespace perdure {
namespace {

constexpr std::string_view kTemporaryMark = ".tmp-";

// ".tmp-<name>-<8 hex digits>".
std::string TemporaryName(std::string_view name) {
  return fmt::format("{}{}-{}", kTemporaryMark, name, RandomHex(4));
}

// The name that a temporary file was to get; nothing for what is none.
std::string_view NameOfTemporary(std::string_view file) {
  const std::size_t dash = file.find_last_of('-');
  if (file.substr(0, kTemporaryMark.size()) != kTemporaryMark || dash < kTemporaryMark.size()) {
    return {};
  }
  return file.substr(kTemporaryMark.size(), dash - kTemporaryMark.size());
}

std::string ParentOf(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return path.substr(0, std::max<std::size_t>(slash, 1));
}

std::string WithoutEndingSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string LastOf(const std::string& key) {
  return key.substr(key.find_last_of('/') + 1);  // npos + 1 is 0
}

Status MakeDirectories(Files& files, const std::string& path) {
  const Result<FileInfo> info = files.Info(path);
  if (info.ok()) {
    // A link to a directory is as good; what it is not shows at the first use.
    if (info->kind != FileKind::kFile) return Ok();
    return Status(Code::kFailedPrecondition,
                  fmt::format("{} is a file, not a directory; name another directory", path));
  }
  if (info.status().code() != Code::kNotFound) return info.status();
  const std::string parent = ParentOf(path);
  if (parent != path) PERDURE_RETURN_IF_ERROR(MakeDirectories(files, parent));
  const Status made = files.MakeDirectory(path);
  if (!made.ok() && made.code() != Code::kAlreadyExists) return made;
  return files.SyncDirectory(parent);
}

}  // namespace

FileStore::FileStore(Files& files, std::string directory)
    : files_(files), directory_(WithoutEndingSlash(std::move(directory))) {}

std::string FileStore::Where(const std::string& key) const {
  return key.empty() ? directory_ : JoinPath(directory_, key);
}

Status FileStore::Put(const std::string& key, std::string_view value) {
  return Publish(key, value, Taken::kReplace);
}

Status FileStore::Create(const std::string& key, std::string_view value) {
  return Publish(key, value, Taken::kRefuse);
}

Status FileStore::Publish(const std::string& key, std::string_view value, Taken taken) {
  PERDURE_RETURN_IF_ERROR(CheckKey(key));
  const std::string parent = ParentOf(Where(key));
  PERDURE_RETURN_IF_ERROR(MakeDirectories(files_, parent));
  const std::string temporary = JoinPath(parent, TemporaryName(LastOf(key)));
  PERDURE_RETURN_IF_ERROR(WriteWholeFile(files_, temporary, value));
  PERDURE_RETURN_IF_ERROR(Name(temporary, key, value, taken));
  return SyncNames(key);
}

Status FileStore::Name(const std::string& temporary, const std::string& key, std::string_view value,
                       Taken taken) {
  if (taken == Taken::kReplace) {
    const Status renamed = files_.Rename(temporary, Where(key), Files::Replace::kYes);
    if (!renamed.ok()) static_cast<void>(files_.Remove(temporary).ok());
    return renamed;
  }
  Status linked = files_.Link(temporary, Where(key));
  if (!linked.ok()) {
    const Result<std::string> found = GetWhole(*this, key, static_cast<std::int64_t>(value.size()));
    if (found.ok() && *found == value) linked = Ok();
  }
  static_cast<void>(files_.Remove(temporary).ok());
  return linked;
}

Status FileStore::SyncNames(const std::string& key) {
  std::string path = Where(key);
  do {
    path = ParentOf(path);
    PERDURE_RETURN_IF_ERROR(files_.SyncDirectory(path));
  } while (path != directory_);
  return Ok();
}

Result<std::string> FileStore::Get(const std::string& key, std::int64_t offset,
                                   std::int64_t bytes) {
  PERDURE_RETURN_IF_ERROR(CheckKey(key));
  PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, files_.Open(Where(key)));
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t size, file->Size());
  std::string value(static_cast<std::size_t>(std::clamp<std::int64_t>(size - offset, 0, bytes)),
                    '\0');
  if (value.empty()) return value;  // `offset` may lie behind the end
  PERDURE_RETURN_IF_ERROR(
      file->Read(offset, std::as_writable_bytes(std::span<char>(value.data(), value.size()))));
  return value;
}

Result<std::vector<std::string>> FileStore::List(const std::string& directory) {
  if (!directory.empty()) PERDURE_RETURN_IF_ERROR(CheckKey(directory));
  const Result<std::vector<DirectoryEntry>> entries = files_.List(Where(directory));
  std::vector<std::string> names;
  if (entries.status().code() == Code::kNotFound) return names;
  PERDURE_RETURN_IF_ERROR(entries.status());
  for (const DirectoryEntry& entry : *entries) {
    if (entry.kind == FileKind::kDirectory || !IsKeyComponent(entry.name)) continue;
    names.push_back(entry.name);
  }
  return names;
}

Status FileStore::Remove(const std::string& key) {
  PERDURE_RETURN_IF_ERROR(CheckKey(key));
  const std::string path = Where(key);
  const Status removed = files_.Remove(path);
  if (!removed.ok() && removed.code() != Code::kNotFound) return removed;
  // Also what somebody else removed may not be durable yet.
  const Status synced = files_.SyncDirectory(ParentOf(path));
  return synced.code() == Code::kNotFound ? Ok() : synced;
}

void FileStore::RemoveTemporaries(const std::string& directory,
                                  const std::function<bool(std::string_view name)>& of) {
  const std::string path = Where(directory);
  const Result<std::vector<DirectoryEntry>> entries = files_.List(path);
  if (!entries.ok()) return;
  for (const DirectoryEntry& entry : *entries) {
    const std::string_view name = NameOfTemporary(entry.name);
    if (entry.kind != FileKind::kFile || name.empty() || !of(name)) continue;
    static_cast<void>(files_.Remove(JoinPath(path, entry.name)).ok());
  }
}

}  // namespace perdure
