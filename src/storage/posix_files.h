// Files on a POSIX file system, local or shared.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "storage/files.h"

namespace perdure {

class PosixFiles final : public Files {
 public:
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

  // Behaves as on a file system without RENAME_NOREPLACE (NFS), for tests of that path.
  void ForgetNoReplace() { no_replace_known_missing_.store(true); }

 private:
  std::atomic<bool> no_replace_known_missing_{false};
};

}  // namespace perdure
