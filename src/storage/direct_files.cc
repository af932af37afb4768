#include "storage/direct_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/log.h"
#include "base/posix.h"
#include "storage/direct_path.h"

namespace perdure {
namespace {

std::string DirectoryOf(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

}  // namespace

std::string DirectChoice::RefusedBecause(std::uint64_t device) const {
  MutexLock lock(mutex_);
  const auto known = known_.find(device);
  return known == known_.end() ? "" : known->second;
}

void DirectChoice::Works(std::uint64_t device, const std::string& path, const std::string& how) {
  MutexLock lock(mutex_);
  if (!known_.emplace(device, "").second) return;
  Log().info("large files in {} go past the page cache: {}", DirectoryOf(path), how);
}

void DirectChoice::Refused(std::uint64_t device, const std::string& path, const std::string& why) {
  MutexLock lock(mutex_);
  std::string& known = known_[device];
  if (!known.empty()) return;
  known = why;
  Log().info("large files in {} go through the page cache: {}", DirectoryOf(path), why);
}

Result<std::unique_ptr<WritableFile>> DirectFiles::Create(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("create {}", path));
  return MakeDirectWriter(std::move(fd), path, options_, choice_);
}

Result<std::unique_ptr<ReadableFile>> DirectFiles::Open(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  return MakeDirectReader(std::move(fd), path, options_, choice_);
}

std::string DirectFiles::PlainBecause(const std::string& path) const {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "";
  return choice_.RefusedBecause(static_cast<std::uint64_t>(info.st_dev));
}

}  // namespace perdure
