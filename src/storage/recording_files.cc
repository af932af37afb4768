#include "storage/recording_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <set>
#include <utility>

#include "base/posix.h"

namespace perdure {
namespace {

void AppendImage(const MemoryDisk& disk, std::size_t node, const std::string& path,
                 std::string& image) {
  for (const auto& [name, child] : disk.nodes[node].names) {
    const std::string child_path = fmt::format("{}/{}", path, name);
    const MemoryDisk::Node& found = disk.nodes[child];
    image += fmt::format("{} {}\n", child_path, found.bytes.size());
    image += found.bytes;
    AppendImage(disk, child, child_path, image);
  }
}

}  // namespace

std::string MemoryDisk::Image() const {
  std::string image;
  AppendImage(*this, 0, "", image);
  return image;
}

class RecordingWritableFile final : public WritableFile {
 public:
  RecordingWritableFile(RecordingFiles& files, std::size_t node, std::string path)
      : files_(files), node_(node), path_(std::move(path)) {}

  Status Write(std::int64_t offset, std::span<const std::byte> bytes) override {
    RecordingFiles::Operation operation;
    operation.offset = offset;
    operation.bytes.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return Do(RecordingFiles::Verb::kWrite, "write", std::move(operation));
  }
  Status Sync() override { return Do(RecordingFiles::Verb::kSync, "sync", {}); }
  Status Close() override {
    const Status status = Do(RecordingFiles::Verb::kClose, "close", {});
    closed_ = true;
    return status;
  }

 private:
  Status Do(RecordingFiles::Verb verb, std::string_view word, RecordingFiles::Operation operation) {
    const std::string sentence = fmt::format("{} {}", word, path_);
    if (closed_) return Status(Code::kFailedPrecondition, sentence + ": it is closed");
    operation.verb = verb;
    operation.node = node_;
    operation.sentence = sentence;
    MutexLock lock(files_.mutex_);
    files_.Record(std::move(operation));
    return Ok();
  }

  RecordingFiles& files_;
  const std::size_t node_;
  const std::string path_;
  bool closed_ = false;
};

class RecordingReadableFile final : public ReadableFile {
 public:
  RecordingReadableFile(RecordingFiles& files, std::size_t node, std::string path)
      : files_(files), node_(node), path_(std::move(path)) {}

  Result<std::int64_t> Size() override {
    MutexLock lock(files_.mutex_);
    return static_cast<std::int64_t>(files_.current_.nodes[node_].bytes.size());
  }

  Status Read(std::int64_t offset, std::span<std::byte> bytes) override {
    MutexLock lock(files_.mutex_);
    const std::string& found = files_.current_.nodes[node_].bytes;
    const auto from = static_cast<std::size_t>(offset);
    if (from > found.size() || bytes.size() > found.size() - from) {
      return Status(Code::kDataLoss, fmt::format("{} ends at byte {}; {} bytes were expected at {}",
                                                 path_, found.size(), bytes.size(), offset));
    }
    if (!bytes.empty()) std::memcpy(bytes.data(), found.data() + from, bytes.size());
    return Ok();
  }

 private:
  RecordingFiles& files_;
  const std::size_t node_;
  const std::string path_;
};

RecordingFiles::RecordingFiles(MemoryDisk disk) : initial_(disk), current_(std::move(disk)) {}

std::int64_t RecordingFiles::steps() const {
  MutexLock lock(mutex_);
  return static_cast<std::int64_t>(operations_.size());
}

std::vector<std::string> RecordingFiles::history() const {
  MutexLock lock(mutex_);
  std::vector<std::string> sentences;
  for (const Operation& operation : operations_) sentences.push_back(operation.sentence);
  return sentences;
}

MemoryDisk RecordingFiles::Current() const {
  MutexLock lock(mutex_);
  return current_;
}

// ---------------------------------------------------------------- the verbs

Result<RecordingFiles::Place> RecordingFiles::Find(const std::string& path,
                                                   const std::string& doing) const {
  Place place;
  place.exists = true;
  std::size_t at = 0;
  while (at < path.size()) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    const std::string name = path.substr(at, slash - at);
    at = slash + 1;
    if (name.empty() || name == ".") continue;
    if (!place.exists) return ErrnoStatus(ENOENT, doing);
    const MemoryDisk::Node& node = current_.nodes[place.node];
    if (node.kind != FileKind::kDirectory) return ErrnoStatus(ENOTDIR, doing);
    place.directory = place.node;
    place.name = name;
    const auto found = node.names.find(name);
    place.exists = found != node.names.end();
    if (place.exists) place.node = found->second;
  }
  return place;
}

void RecordingFiles::Record(Operation operation) {
  if (operation.created != FileKind::kOther) {
    operation.node = current_.nodes.size();
    current_.nodes.push_back({operation.created, {}, {}});
  }
  Apply(operation, Fate::kKept, current_);
  operations_.push_back(std::move(operation));
}

Result<std::unique_ptr<WritableFile>> RecordingFiles::Create(const std::string& path) {
  const std::string doing = fmt::format("create {}", path);
  MutexLock lock(mutex_);
  PERDURE_ASSIGN_OR_RETURN(const Place place, Find(path, doing));
  if (place.exists) return ErrnoStatus(EEXIST, doing);
  Operation operation;
  operation.verb = Verb::kName;
  operation.directory = place.directory;
  operation.name = place.name;
  operation.created = FileKind::kFile;
  operation.sentence = doing;
  Record(std::move(operation));
  return std::unique_ptr<WritableFile>(
      std::make_unique<RecordingWritableFile>(*this, current_.nodes.size() - 1, path));
}

Result<std::unique_ptr<ReadableFile>> RecordingFiles::Open(const std::string& path) {
  const std::string doing = fmt::format("open {}", path);
  MutexLock lock(mutex_);
  PERDURE_ASSIGN_OR_RETURN(const Place place, Find(path, doing));
  if (!place.exists) return ErrnoStatus(ENOENT, doing);
  return std::unique_ptr<ReadableFile>(
      std::make_unique<RecordingReadableFile>(*this, place.node, path));
}

Result<std::vector<DirectoryEntry>> RecordingFiles::List(const std::string& directory) {
  const std::string doing = fmt::format("list {}", directory);
  MutexLock lock(mutex_);
  PERDURE_ASSIGN_OR_RETURN(const Place place, Find(directory, doing));
  if (!place.exists) return ErrnoStatus(ENOENT, doing);
  if (current_.nodes[place.node].kind != FileKind::kDirectory) return ErrnoStatus(ENOTDIR, doing);
  std::vector<DirectoryEntry> entries;
  for (const auto& [name, node] : current_.nodes[place.node].names) {
    entries.push_back({name, current_.nodes[node].kind});
  }
  return entries;
}

Result<FileInfo> RecordingFiles::Info(const std::string& path) {
  const std::string doing = fmt::format("stat {}", path);
  MutexLock lock(mutex_);
  PERDURE_ASSIGN_OR_RETURN(const Place place, Find(path, doing));
  if (!place.exists) return ErrnoStatus(ENOENT, doing);
  const MemoryDisk::Node& node = current_.nodes[place.node];
  return FileInfo{node.kind, static_cast<std::int64_t>(node.bytes.size())};
}

Status RecordingFiles::MakeDirectory(const std::string& path) {
  const std::string doing = fmt::format("mkdir {}", path);
  MutexLock lock(mutex_);
  PERDURE_ASSIGN_OR_RETURN(const Place place, Find(path, doing));
  if (place.exists) return ErrnoStatus(EEXIST, doing);
  Operation operation;
  operation.verb = Verb::kName;
  operation.directory = place.directory;
  operation.name = place.name;
  operation.created = FileKind::kDirectory;
  operation.sentence = doing;
  Record(std::move(operation));
  return Ok();
}

Status RecordingFiles::Rename(const std::string& from, const std::string& to, Replace replace) {
  const std::string doing = fmt::format("rename {} to {}", from, to);
  MutexLock lock(mutex_);
  PERDURE_ASSIGN_OR_RETURN(const Place source, Find(from, doing));
  PERDURE_ASSIGN_OR_RETURN(const Place target, Find(to, doing));
  if (!source.exists) return ErrnoStatus(ENOENT, doing);
  if (target.exists) {
    if (replace == Replace::kNo) return ErrnoStatus(EEXIST, doing);
    const MemoryDisk::Node& old = current_.nodes[target.node];
    if (!old.names.empty()) return ErrnoStatus(ENOTEMPTY, doing);
    if (old.kind != current_.nodes[source.node].kind) {
      return ErrnoStatus(old.kind == FileKind::kDirectory ? EISDIR : ENOTDIR, doing);
    }
  }
  Operation operation;
  operation.verb = Verb::kRename;
  operation.node = source.node;
  operation.directory = source.directory;
  operation.name = source.name;
  operation.to_directory = target.directory;
  operation.to_name = target.name;
  operation.sentence = doing;
  Record(std::move(operation));
  return Ok();
}

Status RecordingFiles::Link(const std::string& from, const std::string& to) {
  const std::string doing = fmt::format("link {} to {}", from, to);
  MutexLock lock(mutex_);
  PERDURE_ASSIGN_OR_RETURN(const Place source, Find(from, doing));
  PERDURE_ASSIGN_OR_RETURN(const Place target, Find(to, doing));
  if (!source.exists) return ErrnoStatus(ENOENT, doing);
  if (target.exists) return ErrnoStatus(EEXIST, doing);
  Operation operation;
  operation.verb = Verb::kName;
  operation.node = source.node;
  operation.directory = target.directory;
  operation.name = target.name;
  operation.sentence = doing;
  Record(std::move(operation));
  return Ok();
}

Status RecordingFiles::Remove(const std::string& path) {
  const std::string doing = fmt::format("remove {}", path);
  MutexLock lock(mutex_);
  PERDURE_ASSIGN_OR_RETURN(const Place place, Find(path, doing));
  if (!place.exists) return ErrnoStatus(ENOENT, doing);
  if (!current_.nodes[place.node].names.empty()) return ErrnoStatus(ENOTEMPTY, doing);
  Operation operation;
  operation.verb = Verb::kRemove;
  operation.node = place.node;
  operation.directory = place.directory;
  operation.name = place.name;
  operation.sentence = doing;
  Record(std::move(operation));
  return Ok();
}

Status RecordingFiles::SyncDirectory(const std::string& directory) {
  const std::string doing = fmt::format("syncdir {}", directory);
  MutexLock lock(mutex_);
  PERDURE_ASSIGN_OR_RETURN(const Place place, Find(directory, doing));
  if (!place.exists) return ErrnoStatus(ENOENT, doing);
  if (current_.nodes[place.node].kind != FileKind::kDirectory) return ErrnoStatus(ENOTDIR, doing);
  Operation operation;
  operation.verb = Verb::kSyncDirectory;
  operation.directory = place.node;
  operation.sentence = doing;
  Record(std::move(operation));
  return Ok();
}

Status RecordingFiles::SyncFile(const std::string& path) {
  const std::string doing = fmt::format("sync {}", path);
  MutexLock lock(mutex_);
  PERDURE_ASSIGN_OR_RETURN(const Place place, Find(path, doing));
  if (!place.exists) return ErrnoStatus(ENOENT, doing);
  if (current_.nodes[place.node].kind != FileKind::kFile) return ErrnoStatus(EISDIR, doing);
  Operation operation;
  operation.verb = Verb::kSync;
  operation.node = place.node;
  operation.sentence = doing;
  Record(std::move(operation));
  return Ok();
}

// ---------------------------------------------------------------- what a cut leaves

void RecordingFiles::Apply(const Operation& operation, Fate fate, MemoryDisk& disk) {
  if (fate == Fate::kLost) return;
  auto& names = disk.nodes[operation.directory].names;
  // A name that leads elsewhere by now belongs to another change.
  const auto erase = [&] {
    const auto found = names.find(operation.name);
    if (found != names.end() && found->second == operation.node) names.erase(found);
  };
  switch (operation.verb) {
    case Verb::kName:
      names[operation.name] = operation.node;
      break;
    case Verb::kRename:
      erase();
      disk.nodes[operation.to_directory].names[operation.to_name] = operation.node;
      break;
    case Verb::kRemove:
      erase();
      break;
    case Verb::kWrite: {
      std::string& bytes = disk.nodes[operation.node].bytes;
      const auto offset = static_cast<std::size_t>(operation.offset);
      std::string written = operation.bytes;
      if (fate == Fate::kHalf) written.resize(written.size() / 2);
      if (fate == Fate::kZeros) std::fill(written.begin(), written.end(), '\0');
      if (written.empty()) break;
      bytes.resize(std::max(bytes.size(), offset + written.size()), '\0');
      bytes.replace(offset, written.size(), written);
      break;
    }
    case Verb::kSync:
    case Verb::kClose:
    case Verb::kSyncDirectory:
      break;
  }
}

void RecordingFiles::VisitFates(const MemoryDisk& certain,
                                const std::vector<const Operation*>& pending, std::size_t disks_max,
                                std::uint64_t seed, const DiskVisitor& visit) {
  using Fates = std::vector<Fate>;
  const auto options = [&](std::size_t i) -> std::size_t {
    return pending[i]->verb == Verb::kWrite ? 4 : 2;
  };
  const auto show = [&](const Fates& fates) {
    MemoryDisk disk = certain;
    std::string lost;
    for (std::size_t i = 0; i < pending.size(); ++i) {
      Apply(*pending[i], fates[i], disk);
      if (fates[i] == Fate::kKept) continue;
      const char* how = fates[i] == Fate::kHalf ? " (half)" : " (zeros)";
      lost += fmt::format("{}{}{}", lost.empty() ? "" : ", ", pending[i]->sentence,
                          fates[i] == Fate::kLost ? "" : how);
    }
    visit(disk, lost.empty() ? "nothing" : lost);
  };

  std::size_t all = 1;
  for (std::size_t i = 0; i < pending.size() && all <= disks_max; ++i) all *= options(i);
  if (all <= disks_max) {
    for (std::size_t n = 0; n < all; ++n) {
      Fates fates;
      std::size_t rest = n;
      for (std::size_t i = 0; i < pending.size(); ++i) {
        fates.push_back(static_cast<Fate>(rest % options(i)));
        rest /= options(i);
      }
      show(fates);
    }
    return;
  }

  std::size_t shown = 0;
  const auto show_bounded = [&](const Fates& fates) {
    if (shown++ < disks_max) show(fates);
  };
  for (const Fate others : {Fate::kLost, Fate::kKept}) {
    const Fates base(pending.size(), others);
    show_bounded(base);
    for (std::size_t i = 0; i < pending.size(); ++i) {
      for (std::size_t fate = 0; fate < options(i); ++fate) {
        if (static_cast<Fate>(fate) == others) continue;
        Fates fates = base;
        fates[i] = static_cast<Fate>(fate);
        show_bounded(fates);
      }
    }
  }
  std::mt19937_64 random(seed);
  while (shown < disks_max) {
    Fates fates;
    for (std::size_t i = 0; i < pending.size(); ++i) {
      fates.push_back(static_cast<Fate>(random() % options(i)));
    }
    show_bounded(fates);
  }
}

void RecordingFiles::ForEachDisk(std::int64_t steps, std::size_t disks_max, std::uint64_t seed,
                                 const DiskVisitor& visit) const {
  std::vector<Operation> operations;
  {
    MutexLock lock(mutex_);
    const auto count = std::min(static_cast<std::size_t>(steps), operations_.size());
    operations.assign(operations_.begin(),
                      operations_.begin() + static_cast<std::ptrdiff_t>(count));
  }
  MemoryDisk certain = initial_;
  std::vector<const Operation*> pending;
  for (const Operation& operation : operations) {
    if (operation.created != FileKind::kOther) {
      certain.nodes.push_back({operation.created, {}, {}});
    }
    if (operation.verb == Verb::kClose) continue;
    const bool sync_file = operation.verb == Verb::kSync;
    if (!sync_file && operation.verb != Verb::kSyncDirectory) {
      pending.push_back(&operation);
      continue;
    }
    const auto covered = [&](const Operation* earlier) {
      const bool write = earlier->verb == Verb::kWrite;
      if (sync_file) return write && earlier->node == operation.node;
      return !write &&
             (earlier->directory == operation.directory ||
              (earlier->verb == Verb::kRename && earlier->to_directory == operation.directory));
    };
    std::set<const Operation*> durable;
    for (std::size_t i = 0; i < pending.size(); ++i) {
      if (!covered(pending[i])) continue;
      durable.insert(pending[i]);
      if (pending[i]->verb != Verb::kRename) continue;
      for (std::size_t before = 0; before < i; ++before) {
        const bool name = pending[before]->verb != Verb::kWrite;
        if (name && pending[before]->node == pending[i]->node) durable.insert(pending[before]);
      }
    }
    std::vector<const Operation*> still;
    for (const Operation* earlier : pending) {
      if (durable.count(earlier) == 0) {
        still.push_back(earlier);
      } else {
        Apply(*earlier, Fate::kKept, certain);
      }
    }
    pending = std::move(still);
  }
  VisitFates(certain, pending, disks_max, seed, visit);
}

}  // namespace perdure
