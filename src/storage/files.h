// The one way in which checkpoints touch a disk: a few verbs on files and directories, each of
// which may fail and says so. Nothing is durable before it was synced: a file by its own Sync, its
// name by SyncDirectory on the directory that holds it.
//
// Vocabulary. A *step* is one call of a verb that changes the disk (Create, Reserve, Write, Sync,
// Close, MakeDirectory, Rename, Link, Remove, SyncDirectory, SyncFile). Crash and fault tests count
// in steps.
//
// Errors: kNotFound and kAlreadyExists mean what they say, kResourceExhausted is a full disk or
// quota, kFailedPrecondition is permission or a read-only file system, kUnavailable is everything
// else that went wrong below us. The message names verb and path.
//
// Threads: Files may be used from any thread; one file object belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "perdure/status.h"

namespace perdure {

// A new file being written. A file that is destroyed without Close is abandoned: what it holds is
// not to be relied on.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // The file will be `bytes` long: room for them is set aside where the file system can do that,
  // and a full disk is told of now rather than in the middle. Optional, and at most once, before
  // the first Write; until everything is written the file may read as zeros.
  virtual Status Reserve(std::int64_t /*bytes*/) { return Ok(); }
  // All of `bytes` at `offset`, or an error after which the file must be abandoned. The memory is
  // free again when it returns, but the bytes may still be under way: their error is then that of
  // a later call, of Sync at the latest.
  virtual Status Write(std::int64_t offset, std::span<const std::byte> bytes) = 0;
  // Whether the coming Writes end by themselves, in error if need be, when the disk does not
  // answer: nobody has to guard them. Changes only during a call on the file.
  virtual bool WritesAreBounded() const { return false; }
  // What was written is on stable storage. After an error nothing more may be expected of this
  // file: the kernel may have dropped the pages and would call a second try a success. Every later
  // call on it fails with the first error.
  virtual Status Sync() = 0;
  // Some file systems tell of a full disk only here.
  virtual Status Close() = 0;
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual Result<std::int64_t> Size() = 0;
  // A hint: the coming reads go through [offset, offset + bytes) in order, perhaps with gaps. What
  // was expected before no longer is.
  virtual void Expect(std::int64_t /*offset*/, std::int64_t /*bytes*/) {}
  // Fills `bytes` from `offset`; kDataLoss when the file ends before that.
  virtual Status Read(std::int64_t offset, std::span<std::byte> bytes) = 0;
};

enum class FileKind : std::uint8_t { kFile, kDirectory, kOther };

struct DirectoryEntry {
  std::string name;
  FileKind kind = FileKind::kOther;
};

struct FileInfo {
  FileKind kind = FileKind::kOther;
  std::int64_t bytes = 0;
};

class Files {
 public:
  enum class Replace : std::uint8_t { kNo, kYes };

  virtual ~Files() = default;

  // A new file; kAlreadyExists when the name is taken.
  virtual Result<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  virtual Result<std::unique_ptr<ReadableFile>> Open(const std::string& path) = 0;
  // Sorted by name, without "." and "..".
  virtual Result<std::vector<DirectoryEntry>> List(const std::string& directory) = 0;
  // Of the name itself: a symbolic link is kOther.
  virtual Result<FileInfo> Info(const std::string& path) = 0;
  virtual Status MakeDirectory(const std::string& path) = 0;
  // kNo: kAlreadyExists when `to` exists. Where the file system cannot promise that in one step,
  // it is looked up first; a directory that is not empty is then still never replaced.
  virtual Status Rename(const std::string& from, const std::string& to, Replace replace) = 0;
  // A second name for a file; kAlreadyExists when it is taken. Atomic on every file system that has
  // links at all, NFS included.
  virtual Status Link(const std::string& from, const std::string& to) = 0;
  // A file, or a directory that is empty.
  virtual Status Remove(const std::string& path) = 0;
  virtual Status SyncDirectory(const std::string& directory) = 0;
  // What somebody else has written into a file is on stable storage.
  virtual Status SyncFile(const std::string& path) {
    return Status(Code::kUnimplemented, "syncing " + path + " by its name");
  }
};

// "dir/name".
std::string JoinPath(std::string_view directory, std::string_view name);

// A small file as a whole; kInvalidArgument when it is larger than `bytes_max`.
Result<std::string> ReadWholeFile(Files& files, const std::string& path, std::int64_t bytes_max);

// Creates, writes, syncs and closes a small file. Its name is not durable yet. On failure what was
// created is removed again where possible.
Status WriteWholeFile(Files& files, const std::string& path, std::string_view text);

}  // namespace perdure
