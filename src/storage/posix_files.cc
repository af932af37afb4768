// Source for what the system calls promise: open(2), rename(2), link(2), fsync(2), close(2) of the
// Linux man-pages, and Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC
// 2020: after a failed fsync the pages are marked clean, so a second call proves nothing.
#include "storage/posix_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/posix.h"
#include "storage/posix_io.h"

namespace perdure {
namespace {

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Status Reserve(std::int64_t bytes) override {
    PERDURE_RETURN_IF_ERROR(failed_);
    return Keep(ReserveAll(fd_.get(), bytes, path_));
  }

  Status Write(std::int64_t offset, std::span<const std::byte> bytes) override {
    PERDURE_RETURN_IF_ERROR(failed_);
    return Keep(WriteAll(fd_.get(), offset, bytes, path_));
  }

  Status Sync() override {
    PERDURE_RETURN_IF_ERROR(failed_);
    if (::fsync(fd_.get()) != 0) return Fail("fsync", errno);
    return Ok();
  }

  Status Close() override {
    PERDURE_RETURN_IF_ERROR(failed_);
    // After EINTR the descriptor is gone on Linux, but whether the data went well is unknown.
    if (::close(fd_.Release()) != 0) return Fail("close", errno);
    failed_ = Status(Code::kFailedPrecondition, fmt::format("{} is closed", path_));
    return Ok();
  }

 private:
  // The first error stays.
  Status Keep(Status status) {
    if (!status.ok()) failed_ = status;
    return status;
  }
  Status Fail(std::string_view verb, int error) {
    return Keep(ErrnoStatus(error, fmt::format("{} {}", verb, path_)));
  }

  UniqueFd fd_;
  std::string path_;
  Status failed_;
};

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Result<std::int64_t> Size() override { return SizeOf(fd_.get(), path_); }

  Status Read(std::int64_t offset, std::span<std::byte> bytes) override {
    return ReadAll(fd_.get(), offset, bytes, path_);
  }

 private:
  UniqueFd fd_;
  std::string path_;
};

FileKind KindOf(mode_t mode) {
  if (S_ISREG(mode)) return FileKind::kFile;
  if (S_ISDIR(mode)) return FileKind::kDirectory;
  return FileKind::kOther;
}

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

}  // namespace

Result<std::unique_ptr<WritableFile>> PosixFiles::Create(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("create {}", path));
  return std::unique_ptr<WritableFile>(std::make_unique<PosixWritableFile>(std::move(fd), path));
}

Result<std::unique_ptr<ReadableFile>> PosixFiles::Open(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  return std::unique_ptr<ReadableFile>(std::make_unique<PosixReadableFile>(std::move(fd), path));
}

Result<std::vector<DirectoryEntry>> PosixFiles::List(const std::string& directory) {
  const std::unique_ptr<DIR, CloseDirectory> stream(::opendir(directory.c_str()));
  if (stream == nullptr) return ErrnoStatus(errno, fmt::format("list {}", directory));
  std::vector<DirectoryEntry> entries;
  for (;;) {
    errno = 0;
    const struct dirent* const entry = ::readdir(stream.get());
    if (entry == nullptr) {
      if (errno != 0) return ErrnoStatus(errno, fmt::format("list {}", directory));
      break;
    }
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    FileKind kind = FileKind::kOther;
    if (entry->d_type == DT_REG) {
      kind = FileKind::kFile;
    } else if (entry->d_type == DT_DIR) {
      kind = FileKind::kDirectory;
    } else if (entry->d_type == DT_UNKNOWN) {
      // Some file systems do not fill d_type. A name that is gone by now was removed meanwhile.
      const Result<FileInfo> info = Info(JoinPath(directory, name));
      if (!info.ok() && info.status().code() == Code::kNotFound) continue;
      PERDURE_RETURN_IF_ERROR(info.status());
      kind = info->kind;
    }
    entries.push_back({name, kind});
  }
  std::sort(entries.begin(), entries.end(),
            [](const DirectoryEntry& a, const DirectoryEntry& b) { return a.name < b.name; });
  return entries;
}

Result<FileInfo> PosixFiles::Info(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", path));
  return FileInfo{KindOf(info.st_mode), static_cast<std::int64_t>(info.st_size)};
}

Status PosixFiles::MakeDirectory(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0) return ErrnoStatus(errno, fmt::format("mkdir {}", path));
  return Ok();
}

Status PosixFiles::Rename(const std::string& from, const std::string& to, Replace replace) {
  const std::string doing = fmt::format("rename {} to {}", from, to);
  if (replace == Replace::kNo && !no_replace_known_missing_.load()) {
    if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) ==
        0) {
      return Ok();
    }
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) return ErrnoStatus(errno, doing);
    no_replace_known_missing_.store(true);
  }
  if (replace == Replace::kNo) {
    struct stat info {};
    if (::lstat(to.c_str(), &info) == 0) return ErrnoStatus(EEXIST, doing);
    if (errno != ENOENT) return ErrnoStatus(errno, doing);
  }
  if (::rename(from.c_str(), to.c_str()) != 0) return ErrnoStatus(errno, doing);
  return Ok();
}

Status PosixFiles::Link(const std::string& from, const std::string& to) {
  if (::link(from.c_str(), to.c_str()) != 0) {
    return ErrnoStatus(errno, fmt::format("link {} to {}", from, to));
  }
  return Ok();
}

Status PosixFiles::Remove(const std::string& path) {
  if (::remove(path.c_str()) != 0) return ErrnoStatus(errno, fmt::format("remove {}", path));
  return Ok();
}

Status PosixFiles::SyncDirectory(const std::string& directory) {
  UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", directory));
  if (::fsync(fd.get()) != 0) return ErrnoStatus(errno, fmt::format("fsync {}", directory));
  if (::close(fd.Release()) != 0) return ErrnoStatus(errno, fmt::format("close {}", directory));
  return Ok();
}

Status PosixFiles::SyncFile(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  if (::fsync(fd.get()) != 0) return ErrnoStatus(errno, fmt::format("fsync {}", path));
  if (::close(fd.Release()) != 0) return ErrnoStatus(errno, fmt::format("close {}", path));
  return Ok();
}

}  // namespace perdure
