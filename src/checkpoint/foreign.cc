#include "checkpoint/foreign.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "base/log.h"
#include "base/posix.h"
#include "checkpoint/damage.h"
#include "checkpoint/deleter.h"
#include "checkpoint/hash.h"
#include "checkpoint/json.h"
#include "checkpoint/names.h"

namespace perdure {
namespace {

constexpr std::size_t kReadBytes = std::size_t{4} << 20;

// kNotFound and the disk's errors as they are.
Result<ForeignFile> HashFile(Files& files, const std::string& path, std::string name) {
  PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, files.Open(path));
  ForeignFile found;
  found.name = std::move(name);
  PERDURE_ASSIGN_OR_RETURN(found.bytes, file->Size());
  file->Expect(0, found.bytes);
  DigestStream digest;
  std::vector<std::byte> block;
  for (std::int64_t at = 0; at < found.bytes; at += static_cast<std::int64_t>(block.size())) {
    block.resize(std::min(kReadBytes, static_cast<std::size_t>(found.bytes - at)));
    PERDURE_RETURN_IF_ERROR(file->Read(at, block));
    digest.Add(block);
  }
  found.digest = digest.Finish();
  return found;
}

// Makes everything below `path` durable and lists its files; `prefix` leads there from the part.
Status TakeTree(Files& files, const std::string& path, const std::string& prefix, int depth,
                std::vector<ForeignFile>& taken) {
  if (depth > kForeignDepthMax) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: directories deeper than {}", path, kForeignDepthMax));
  }
  PERDURE_ASSIGN_OR_RETURN(const std::vector<DirectoryEntry> entries, files.List(path));
  for (const DirectoryEntry& entry : entries) {
    const std::string below = JoinPath(path, entry.name);
    const std::string name = fmt::format("{}/{}", prefix, entry.name);
    if (entry.kind == FileKind::kDirectory) {
      PERDURE_RETURN_IF_ERROR(TakeTree(files, below, name, depth + 1, taken));
      continue;
    }
    if (entry.kind != FileKind::kFile) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{} is neither a file nor a directory, which a checkpoint cannot "
                                "hold; write a file instead",
                                below));
    }
    if (!IsForeignFileName(name) || !IsUtf8(name)) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{}: a name that a manifest cannot hold; use shorter ones of "
                                "printable UTF-8",
                                below));
    }
    if (taken.size() == kForeignFilesMax) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{} holds more than {} files", prefix, kForeignFilesMax));
    }
    PERDURE_RETURN_IF_ERROR(files.SyncFile(below));
    PERDURE_ASSIGN_OR_RETURN(ForeignFile file, HashFile(files, below, name));
    taken.push_back(std::move(file));
  }
  return files.SyncDirectory(path);
}

// Several ranks make it; each is content when it is there.
Status MakeSharedDirectory(Files& files, const std::string& path) {
  const Status made = files.MakeDirectory(path);
  return made.code() == Code::kAlreadyExists ? Ok() : made;
}

}  // namespace

Status CallProgram(const std::function<Status(const std::string&)>& call,
                   const std::string& directory, const std::string& doing) {
  try {
    return call(directory).WithContext(doing);
  } catch (const std::exception& error) {
    return Status(Code::kInvalidArgument, fmt::format("{}: it threw: {}", doing, error.what()));
  } catch (...) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: it threw something that is no std::exception", doing));
  }
}

Result<std::string> WriteForeign(Files& files, const std::string& root, const CheckpointId& id,
                                 const std::vector<ForeignPart>& parts) {
  if (parts.empty()) return std::string();
  std::string written = JoinPath(root, FormatName({NameKind::kAttempt, id, RandomHex(4)}));
  const auto write = [&]() -> Status {
    PERDURE_RETURN_IF_ERROR(files.MakeDirectory(written));
    const std::string all = JoinPath(written, kForeignDirectory);
    PERDURE_RETURN_IF_ERROR(files.MakeDirectory(all));
    for (const ForeignPart& part : parts) {
      const std::string directory = JoinPath(all, part.name);
      PERDURE_RETURN_IF_ERROR(files.MakeDirectory(directory));
      PERDURE_RETURN_IF_ERROR(
          CallProgram(part.write, directory, fmt::format("writing part \"{}\"", part.name)));
    }
    return Ok();
  };
  const Status done = write();
  if (done.ok()) return written;
  DropForeign(files, written);
  return done;
}

Result<ForeignFiles> TakeForeign(Files& files, const std::string& written,
                                 const std::string& attempt, Rank rank, int world) {
  ForeignFiles taken;
  if (written.empty()) return taken;
  const std::string from = JoinPath(written, kForeignDirectory);
  const std::string to = JoinPath(attempt, kForeignDirectory);
  const std::string own = ForeignRankName(rank, world);
  PERDURE_RETURN_IF_ERROR(MakeSharedDirectory(files, to));
  PERDURE_ASSIGN_OR_RETURN(const std::vector<DirectoryEntry> parts, files.List(from));
  for (const DirectoryEntry& part : parts) {
    const std::string tree = JoinPath(from, part.name);
    PERDURE_RETURN_IF_ERROR(TakeTree(files, tree, own, 1, taken[part.name]));
    const std::string target = JoinPath(to, part.name);
    PERDURE_RETURN_IF_ERROR(MakeSharedDirectory(files, target));
    PERDURE_RETURN_IF_ERROR(files.Rename(tree, JoinPath(target, own), Files::Replace::kNo));
    PERDURE_RETURN_IF_ERROR(files.SyncDirectory(target));
  }
  PERDURE_RETURN_IF_ERROR(files.SyncDirectory(to));
  PERDURE_RETURN_IF_ERROR(files.SyncDirectory(attempt));
  return taken;
}

void DropForeign(Files& files, const std::string& written) {
  if (written.empty()) return;
  const Status deleted = DeleteTrash(files, written);
  if (!deleted.ok()) {
    Log().warn("{} stays for a later clean-up: {}", written, deleted.message());
  }
}

std::string ForeignDirectory(const std::string& directory, const std::string& part, Rank rank,
                             int world) {
  return JoinPath(JoinPath(JoinPath(directory, kForeignDirectory), part),
                  ForeignRankName(rank, world));
}

Status VerifyForeignFile(Files& files, const std::string& directory, const std::string& part,
                         const ForeignFile& file) {
  const std::string path =
      JoinPath(JoinPath(JoinPath(directory, kForeignDirectory), part), file.name);
  const Result<ForeignFile> found = HashFile(files, path, file.name);
  if (found.status().code() == Code::kNotFound) return Damaged(path, "the file is missing");
  PERDURE_RETURN_IF_ERROR(found.status());
  if (found->bytes != file.bytes) {
    return Damaged(path,
                   fmt::format("has {} bytes, the manifest says {}", found->bytes, file.bytes));
  }
  if (found->digest != file.digest) {
    return Damaged(path, "its bytes are not those that were written");
  }
  return Ok();
}

ForeignRead PlanForeign(const Manifest& manifest, const ForeignPart& part, Rank rank, int world) {
  ForeignRead plan;
  plan.from = rank;
  const auto found = manifest.foreign.find(part.name);
  if (found == manifest.foreign.end()) {
    plan.difference =
        fmt::format("files of part {}: in the program, not in the checkpoint", part.name);
    return plan;
  }
  if (manifest.world != world) {
    plan.recompute = part.on_world_change == WorldChange::kRecompute;
    if (part.on_world_change == WorldChange::kError) {
      plan.difference = fmt::format(
          "files of part {}: every rank has its own, {} ranks saved them and {} go on; start with "
          "{} ranks, or let AddWriter's on_world_change say what becomes of them "
          "(WorldChange::kRank0 or kRecompute)",
          part.name, manifest.world, world, manifest.world);
    }
    plan.from = Rank(0);
  }
  const std::string prefix = ForeignRankName(plan.from, manifest.world) + "/";
  for (const ForeignFile& file : found->second) {
    if (!plan.recompute && file.name.compare(0, prefix.size(), prefix) == 0) {
      plan.files.push_back(&file);
    }
  }
  return plan;
}

}  // namespace perdure
