// Files that answer in time: a call that the file system does not answer within `patience` is given
// up with kDeadlineExceeded, and the caller goes on. A server of a network file system that is
// away, or a disk that hangs, then fails one attempt instead of holding a thread for good.
//
// How: every call runs on a thread of a small pool, and the caller waits for it. When the time is
// over, the thread is left behind with all that it may still touch: its own copies of paths and
// bytes, and a share of the file and of the files below. Nothing else can be done with a thread
// that the kernel does not let go; it ends when its call returns, if it ever does. After kStuckMax
// such calls every further one is refused at once, until one of them returns.
//
// Large reads are passed on unguarded: restoring has a deadline of its own, and a copy of each byte
// would cost what it saves. So are writes to a file that says that they are bounded already. A
// failed Write may be told by a later call on the file, at the latest by Sync or Close.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "perdure/clock.h"
#include "storage/files.h"

namespace perdure {

class BoundedFiles final : public Files {
 public:
  static constexpr int kStuckMax = 8;
  static constexpr std::int64_t kGuardedReadBytesMax = std::int64_t{1} << 20;

  BoundedFiles(std::shared_ptr<Files> base, Duration patience);
  // Ends the threads of the pool that are not stuck.
  ~BoundedFiles() override;
  BoundedFiles(const BoundedFiles&) = delete;
  BoundedFiles& operator=(const BoundedFiles&) = delete;

  // Calls that were given up and have not returned yet.
  int stuck() const;

  Result<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  Result<std::unique_ptr<ReadableFile>> Open(const std::string& path) override;
  Result<std::vector<DirectoryEntry>> List(const std::string& directory) override;
  Result<FileInfo> Info(const std::string& path) override;
  Status MakeDirectory(const std::string& path) override;
  Status Rename(const std::string& from, const std::string& to, Replace replace) override;
  Status Link(const std::string& from, const std::string& to) override;
  Status Remove(const std::string& path) override;
  Status SyncDirectory(const std::string& directory) override;
  Status SyncFile(const std::string& path) override;

  class Pool;

 private:
  const std::shared_ptr<Files> base_;
  const std::shared_ptr<Pool> pool_;
};

}  // namespace perdure
