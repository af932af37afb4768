// Counts what is read: which bytes of which file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "storage/files.h"

namespace perdure {

class CountingFiles final : public Files {
 public:
  explicit CountingFiles(Files& files) : files_(files) {}

  // Bytes that were asked for, per file name without its directory.
  std::map<std::string, std::int64_t> read() const {
    MutexLock lock(mutex_);
    return read_;
  }

  Result<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    return files_.Create(path);
  }
  Result<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    PERDURE_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files_.Open(path));
    return std::unique_ptr<ReadableFile>(
        std::make_unique<Counted>(std::move(file), *this, path.substr(path.find_last_of('/') + 1)));
  }
  Result<std::vector<DirectoryEntry>> List(const std::string& directory) override {
    return files_.List(directory);
  }
  Result<FileInfo> Info(const std::string& path) override { return files_.Info(path); }
  Status MakeDirectory(const std::string& path) override { return files_.MakeDirectory(path); }
  Status Rename(const std::string& from, const std::string& to, Replace replace) override {
    return files_.Rename(from, to, replace);
  }
  Status Link(const std::string& from, const std::string& to) override {
    return files_.Link(from, to);
  }
  Status Remove(const std::string& path) override { return files_.Remove(path); }
  Status SyncDirectory(const std::string& directory) override {
    return files_.SyncDirectory(directory);
  }

 private:
  class Counted final : public ReadableFile {
   public:
    Counted(std::unique_ptr<ReadableFile> file, CountingFiles& counts, std::string name)
        : file_(std::move(file)), counts_(counts), name_(std::move(name)) {}
    Result<std::int64_t> Size() override { return file_->Size(); }
    void Expect(std::int64_t offset, std::int64_t bytes) override { file_->Expect(offset, bytes); }
    Status Read(std::int64_t offset, std::span<std::byte> bytes) override {
      {
        MutexLock lock(counts_.mutex_);
        counts_.read_[name_] += static_cast<std::int64_t>(bytes.size());
      }
      return file_->Read(offset, bytes);
    }

   private:
    const std::unique_ptr<ReadableFile> file_;
    CountingFiles& counts_;
    const std::string name_;
  };

  Files& files_;
  mutable Mutex mutex_;
  std::map<std::string, std::int64_t> read_ PERDURE_GUARDED_BY(mutex_);
};

}  // namespace perdure
