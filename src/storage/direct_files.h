// Files that move large amounts past the page cache: O_DIRECT, several requests in flight. What is
// written small stays with the page cache, which is better at it.
//
// Which way a file goes:
//  1 A file begins with plain calls. The first Write of at least `direct_from_bytes`, or an Expect
//    of as many, asks for the direct way.
//  2 It is refused where the file system or the kernel says so: memory file systems, no O_DIRECT,
//    no alignment (statx), no io_uring. Then plain calls it stays.
//  3 Else the bytes are gathered in aligned blocks and sent from there; what does not fill a unit
//    of the alignment, at either end, takes the plain way. Units of both ways never share a page.
//  4 A block that comes back short is finished with plain calls. One that comes back with an error
//    that means "not like this" (EINVAL, EOPNOTSUPP) is too, and the file goes on with plain
//    calls; any other error is the disk's and fails the file.
// The first answer of 2 or 4 for a file system is said in the log, once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "storage/io_lane.h"
#include "storage/posix_files.h"
#include "storage/ring.h"

namespace perdure {

struct DirectOptions {
  LaneShape lane;
  std::int64_t direct_from_bytes = std::int64_t{1} << 20;
  RingOpener open_ring = OpenUring;
  const Clock* clock = &RealClock();
};

// What was found out about each file system, so that it is asked and told once. Thread-safe.
class DirectChoice {
 public:
  // Empty: nothing known, or direct. Else the reason why not.
  std::string RefusedBecause(std::uint64_t device) const;
  void Works(std::uint64_t device, const std::string& path, const std::string& how);
  void Refused(std::uint64_t device, const std::string& path, const std::string& why);

 private:
  mutable Mutex mutex_;
  // By device number; "" when direct. A process meets few file systems.
  std::map<std::uint64_t, std::string> known_ PERDURE_GUARDED_BY(mutex_);
};

class DirectFiles final : public Files {
 public:
  explicit DirectFiles(DirectOptions options = {}) : options_(std::move(options)) {}

  Result<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  Result<std::unique_ptr<ReadableFile>> Open(const std::string& path) override;
  // As with plain files.
  Result<std::vector<DirectoryEntry>> List(const std::string& directory) override {
    return plain_.List(directory);
  }
  Result<FileInfo> Info(const std::string& path) override { return plain_.Info(path); }
  Status MakeDirectory(const std::string& path) override { return plain_.MakeDirectory(path); }
  Status Rename(const std::string& from, const std::string& to, Replace replace) override {
    return plain_.Rename(from, to, replace);
  }
  Status Link(const std::string& from, const std::string& to) override {
    return plain_.Link(from, to);
  }
  Status Remove(const std::string& path) override { return plain_.Remove(path); }
  Status SyncDirectory(const std::string& directory) override {
    return plain_.SyncDirectory(directory);
  }
  Status SyncFile(const std::string& path) override { return plain_.SyncFile(path); }

  // Why large files take the plain way on the file system of `path`; empty when they do not, or
  // when none was met yet.
  std::string PlainBecause(const std::string& path) const;

 private:
  const DirectOptions options_;
  PosixFiles plain_;
  DirectChoice choice_;
};

}  // namespace perdure
