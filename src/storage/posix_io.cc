#include "storage/posix_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/posix.h"

namespace perdure {
namespace {

// Linux moves at most 0x7ffff000 bytes per call; staying below keeps the loop uniform.
constexpr std::size_t kBytesPerCallMax = std::size_t{1} << 30;

}  // namespace

Status WriteAll(int fd, std::int64_t offset, std::span<const std::byte> bytes,
                const std::string& path) {
  while (!bytes.empty()) {
    const std::size_t want = std::min(bytes.size(), kBytesPerCallMax);
    const ssize_t done = ::pwrite(fd, bytes.data(), want, offset);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return ErrnoStatus(done < 0 ? errno : EIO, fmt::format("write {}", path));
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += done;
  }
  return Ok();
}

Status ReadAll(int fd, std::int64_t offset, std::span<std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const std::size_t want = std::min(bytes.size(), kBytesPerCallMax);
    const ssize_t done = ::pread(fd, bytes.data(), want, offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return ErrnoStatus(errno, fmt::format("read {}", path));
    if (done == 0) {
      return Status(Code::kDataLoss, fmt::format("{} ends at byte {}; {} more were expected", path,
                                                 offset, bytes.size()));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += done;
  }
  return Ok();
}

Status ReserveAll(int fd, std::int64_t bytes, const std::string& path) {
  if (bytes <= 0) return Ok();
  for (;;) {
    if (::fallocate(fd, 0, 0, bytes) == 0) return Ok();
    switch (errno) {
      case EINTR:
        continue;
      // The file system knows no reservation, or not of this kind: what is written finds its room
      // later, or not.
      case EOPNOTSUPP:
      case ENOSYS:
      case EINVAL:
        return Ok();
      default:
        return ErrnoStatus(errno, fmt::format("reserve {} bytes for {}", bytes, path));
    }
  }
}

Result<std::int64_t> SizeOf(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", path));
  return static_cast<std::int64_t>(info.st_size);
}

}  // namespace perdure
