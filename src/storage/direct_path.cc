// Source: open(2) for O_DIRECT, statx(2) for STATX_DIOALIGN (Linux 6.1 and newer answer it).
#include "storage/direct_path.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace perdure {
namespace {

// Never less, so that direct and plain writes share no page, and what is not asked is safe: it is a
// multiple of every block size in use.
constexpr std::int64_t kAlignmentMin = 4096;

// The alignment that the file needs, or 0 and a reason.
std::int64_t AlignmentOf(int fd, std::size_t block_bytes, std::string* why) {
  struct statfs system {};
  if (::fstatfs(fd, &system) == 0 &&
      (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC)) {
    *why = "the file system lives in memory";
    return 0;
  }
  // The system call itself: the C library's header may be older than the kernel's.
  struct statx info {};
  const long asked = ::syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info);
  if (asked != 0 || (info.stx_mask & STATX_DIOALIGN) == 0) return kAlignmentMin;
  if (info.stx_dio_offset_align == 0) {
    *why = "the file system has no direct I/O for this file";
    return 0;
  }
  const std::int64_t offset_alignment =
      std::max<std::int64_t>(info.stx_dio_offset_align, kAlignmentMin);
  if (info.stx_dio_mem_align > kAlignmentMin || offset_alignment % kAlignmentMin != 0 ||
      static_cast<std::int64_t>(block_bytes) % offset_alignment != 0) {
    *why = fmt::format("direct I/O needs memory at {} and offsets at {} bytes here",
                       info.stx_dio_mem_align, info.stx_dio_offset_align);
    return 0;
  }
  return offset_alignment;
}

}  // namespace

std::unique_ptr<DirectPath> DirectPath::Open(int plain, const std::string& path, int flags,
                                             const DirectOptions& options, DirectChoice& choice) {
  struct stat first {};
  if (::fstat(plain, &first) != 0) return nullptr;
  const auto device = static_cast<std::uint64_t>(first.st_dev);
  if (!choice.RefusedBecause(device).empty()) return nullptr;
  const auto refuse = [&](const std::string& why) {
    choice.Refused(device, path, why);
    return nullptr;
  };
  std::string why;
  const std::int64_t alignment = AlignmentOf(plain, options.lane.block_bytes, &why);
  if (alignment == 0) return refuse(why);
  UniqueFd fd(::open(path.c_str(), flags | O_DIRECT | O_CLOEXEC));
  struct stat second {};
  // The name may mean another file by now, or none; that says nothing about the file system.
  if (!fd.valid() && errno != EINVAL && errno != EOPNOTSUPP) return nullptr;
  if (!fd.valid()) return refuse(ErrnoStatus(errno, "open with O_DIRECT").message());
  if (::fstat(fd.get(), &second) != 0 || first.st_ino != second.st_ino ||
      first.st_dev != second.st_dev) {
    return nullptr;
  }
  Result<std::unique_ptr<IoLane>> lane =
      IoLane::Open(options.open_ring, options.lane, *options.clock);
  if (!lane.ok()) return refuse(lane.status().message());
  choice.Works(device, path,
               fmt::format("O_DIRECT, {} requests of {} KiB in flight, aligned to {}",
                           options.lane.depth, options.lane.block_bytes >> 10, alignment));
  return std::unique_ptr<DirectPath>(
      new DirectPath(std::move(fd), alignment, std::move(lane).value(), choice, device, path));
}

bool DirectPath::Refuses(int error) {
  if (error != EINVAL && error != EOPNOTSUPP && error != ENOSYS) return false;
  choice_.Refused(device_, path_, ErrnoStatus(error, "a direct request").message());
  return true;
}

}  // namespace perdure
