// Files in memory that remember every step, so that a test can ask which disks a power cut after
// any of them could have left behind.
//
// What a power cut leaves is what files.h promises, and not more than that:
//   * every write that a later Sync of its file covered; every change of a name (Create,
//     MakeDirectory, Rename, Link, Remove) that a later SyncDirectory of its directory covered
//   * of the other writes, any subset; each whole, its first half, or zeros of its length
//   * of the other changes of names, any subset, in their order; a Rename is one change, and one
//   that
//     is durable takes earlier changes of what it moves along: nothing is in two places
// Data and names are independent: a name may be there without the bytes, and the other way round.
// Real file systems reorder less than this; a protocol that survives this does not rely on them.
// Source: Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "storage/files.h"

namespace perdure {

// What a disk holds. Node 0 is "/"; a node that no name leads to is lost.
struct MemoryDisk {
  struct Node {
    FileKind kind = FileKind::kDirectory;
    std::string bytes;                         // files
    std::map<std::string, std::size_t> names;  // directories
    friend bool operator==(const Node&, const Node&) = default;
  };
  std::vector<Node> nodes = {Node{}};

  // Every path with its bytes, in order: equal exactly for disks that look the same.
  std::string Image() const;
};

class RecordingFiles final : public Files {
 public:
  // Called with a disk and with what it lost, for messages.
  using DiskVisitor = std::function<void(const MemoryDisk& disk, const std::string& lost)>;

  // Begins with `disk`, all of it durable.
  explicit RecordingFiles(MemoryDisk disk = {});

  // Steps that were carried out so far, and their sentences: "syncdir /root".
  std::int64_t steps() const;
  std::vector<std::string> history() const;
  MemoryDisk Current() const;

  // Visits disks that a power cut right after the first `steps` steps could leave: all of them when
  // there are at most `disks_max`; else the extremes, those with one thing lost or one thing kept,
  // and random ones from `seed` up to that number. The same arguments give the same disks.
  void ForEachDisk(std::int64_t steps, std::size_t disks_max, std::uint64_t seed,
                   const DiskVisitor& visit) const;

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

 private:
  friend class RecordingWritableFile;
  friend class RecordingReadableFile;

  enum class Verb : std::uint8_t { kName, kRename, kRemove, kWrite, kSync, kClose, kSyncDirectory };
  struct Operation {
    Verb verb = Verb::kClose;
    std::size_t node = 0;       // what it is about
    std::size_t directory = 0;  // whose names change, or which is synced
    std::string name;
    std::size_t to_directory = 0;  // kRename
    std::string to_name;
    std::int64_t offset = 0;  // kWrite
    std::string bytes;
    FileKind created = FileKind::kOther;  // kName of a new node
    std::string sentence;
  };
  // Where a path leads: its directory and last name, and the node when there is one.
  struct Place {
    std::size_t directory = 0;
    std::string name;
    bool exists = false;
    std::size_t node = 0;
  };
  // How much of an operation that no sync covered reaches the disk.
  enum class Fate : std::uint8_t { kLost, kKept, kHalf, kZeros };

  Result<Place> Find(const std::string& path, const std::string& doing) const
      PERDURE_REQUIRES(mutex_);
  void Record(Operation operation) PERDURE_REQUIRES(mutex_);
  static void Apply(const Operation& operation, Fate fate, MemoryDisk& disk);
  static void VisitFates(const MemoryDisk& certain, const std::vector<const Operation*>& pending,
                         std::size_t disks_max, std::uint64_t seed, const DiskVisitor& visit);

  const MemoryDisk initial_;
  mutable Mutex mutex_;
  MemoryDisk current_ PERDURE_GUARDED_BY(mutex_);
  std::vector<Operation> operations_ PERDURE_GUARDED_BY(mutex_);
};

}  // namespace perdure
