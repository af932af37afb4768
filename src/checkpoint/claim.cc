// Protocol of a claim (rank 0, before anything is listed for a restore):
//   1 the root, its perdure.json and its lineage directory exist and are durable
//   2 gN.claim: temporary file, fsync, link() to the name (fails if it exists), fsync of lineage/
//   3 no higher claim appeared meanwhile
//   4 every attempt of an older generation is renamed into the trash, fsync of ROOT: a late rename
//     of a cut-off rank finds nothing
// A fork gN.json is published like 2.
#include "checkpoint/claim.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "base/posix.h"
#include "checkpoint/json.h"
#include "checkpoint/names.h"

namespace perdure {
namespace {

constexpr std::int64_t kSmallFileBytesMax = std::int64_t{16} << 20;
constexpr int kClaimTriesMax = 16;

std::string LineagePath(const std::string& root) {
  return JoinPath(root, kLineageDirectory);
}

bool Exists(Files& files, const std::string& path) {
  return files.Info(path).ok();
}

// Makes a directory and those above it, each durable before the next.
Status MakeDirectories(Files& files, const std::string& path) {
  const Result<FileInfo> info = files.Info(path);
  if (info.ok()) {
    // A link to a directory is as good; what it is not shows at the first use.
    if (info->kind == FileKind::kFile) {
      return Status(
          Code::kFailedPrecondition,
          fmt::format("{} is a file, not a directory; name another checkpoint directory", path));
    }
    return Ok();
  }
  if (info.status().code() != Code::kNotFound) return info.status();
  const std::size_t slash = path.find_last_of('/');
  const std::string parent =
      slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
  if (parent != path) PERDURE_RETURN_IF_ERROR(MakeDirectories(files, parent));
  const Status made = files.MakeDirectory(path);
  if (!made.ok() && made.code() != Code::kAlreadyExists) return made;
  return files.SyncDirectory(parent);
}

// Who is at it, for people; the random part makes the claim ours.
std::string ClaimText(Generation generation, WallTime now) {
  char host[256] = "unknown";
  static_cast<void>(::gethostname(host, sizeof(host) - 1));
  return SealJson(fmt::format(
      "{{\n\"generation\": {},\n\"claimant\": \"{}\",\n\"host\": {},\n\"pid\": {},\n"
      "\"created\": \"{}\",\n",
      generation.value(), RandomHex(16), QuoteJson(host), ::getpid(), FormatWallTime(now)));
}

Status MoveOldAttemptsToTrash(Files& files, const std::string& root, Generation generation) {
  PERDURE_ASSIGN_OR_RETURN(const std::vector<DirectoryEntry> entries, files.List(root));
  bool moved = false;
  for (const DirectoryEntry& entry : entries) {
    std::optional<CheckpointName> name = ParseName(entry.name);
    if (!name.has_value() || name->kind != NameKind::kAttempt ||
        name->id.generation >= generation) {
      continue;
    }
    name->kind = NameKind::kTrashedAttempt;
    const Status renamed = files.Rename(JoinPath(root, entry.name),
                                        JoinPath(root, FormatName(*name)), Files::Replace::kNo);
    if (!renamed.ok() && renamed.code() != Code::kNotFound) return renamed;
    moved = true;
  }
  return moved ? files.SyncDirectory(root) : Ok();
}

// Temporary files of claims and forks that died halfway. Best effort: nobody reads them.
void RemoveOldTemporaries(Files& files, const std::string& root, Generation generation) {
  const std::string lineage = LineagePath(root);
  const Result<std::vector<DirectoryEntry>> entries = files.List(lineage);
  if (!entries.ok()) return;
  for (const DirectoryEntry& entry : *entries) {
    constexpr std::string_view kPrefix = ".tmp-";
    const std::string_view name = entry.name;
    const std::size_t dash = name.find_last_of('-');
    if (name.substr(0, kPrefix.size()) != kPrefix || dash < kPrefix.size()) continue;
    const std::string_view target = name.substr(kPrefix.size(), dash - kPrefix.size());
    std::optional<Generation> owner = ParseClaimName(target);
    if (!owner.has_value()) owner = ParseForkName(target);
    if (!owner.has_value() || *owner >= generation) continue;
    static_cast<void>(files.Remove(JoinPath(lineage, entry.name)).ok());
  }
}

Status Taken(Generation mine, Generation found) {
  return Status(Code::kFenced,
                fmt::format("generation {} cannot be claimed: generation {} has been claimed on "
                            "this checkpoint directory",
                            mine.value(), found.value()));
}

}  // namespace

Status PublishExclusive(Files& files, const std::string& directory, const std::string& name,
                        const std::string& text) {
  const std::string path = JoinPath(directory, name);
  const std::string temp = JoinPath(directory, fmt::format(".tmp-{}-{}", name, RandomHex(4)));
  PERDURE_RETURN_IF_ERROR(WriteWholeFile(files, temp, text));
  Status linked = files.Link(temp, path);
  if (!linked.ok()) {
    // A network file system may report a failure of what took effect: what is there decides.
    const Result<std::string> found = ReadWholeFile(files, path, kSmallFileBytesMax);
    if (found.ok() && *found == text) linked = Ok();
  }
  static_cast<void>(files.Remove(temp).ok());
  PERDURE_RETURN_IF_ERROR(linked);
  return files.SyncDirectory(directory);
}

Result<RootFile> ReadRootFile(Files& files, const std::string& root) {
  const std::string path = JoinPath(root, kRootFileName);
  PERDURE_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(files, path, kSmallFileBytesMax));
  PERDURE_RETURN_IF_ERROR(CheckSeal(text, path).status());
  PERDURE_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, path));
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t version, JsonCount(json, "format_version", path));
  if (version != 1) {
    return Status(Code::kDataLoss,
                  fmt::format("{}: format version {} is not known here", path, version));
  }
  RootFile file;
  PERDURE_ASSIGN_OR_RETURN(file.root_id, JsonText(json, "root_id", path));
  PERDURE_ASSIGN_OR_RETURN(file.job, JsonText(json, "job", path));
  return file;
}

Result<RootFile> EnsureRoot(Files& files, const std::string& root, const std::string& job,
                            WallTime now) {
  PERDURE_RETURN_IF_ERROR(MakeDirectories(files, root));
  Result<RootFile> file = ReadRootFile(files, root);
  if (!file.ok() && file.status().code() == Code::kNotFound) {
    const std::string text =
        SealJson(fmt::format("{{\n\"format_version\": 1,\n\"root_id\": \"{}\",\n\"job\": {},\n"
                             "\"created\": \"{}\",\n",
                             RandomHex(16), QuoteJson(job), FormatWallTime(now)));
    const Status published = PublishExclusive(files, root, std::string(kRootFileName), text);
    if (!published.ok() && published.code() != Code::kAlreadyExists) return published;
    file = ReadRootFile(files, root);
  }
  PERDURE_RETURN_IF_ERROR(file.status());
  if (file->job != job) {
    return Status(Code::kFailedPrecondition,
                  fmt::format("{} holds the checkpoints of job \"{}\", not of \"{}\"; name another "
                              "checkpoint directory",
                              root, file->job, job));
  }
  if (!Exists(files, LineagePath(root))) {
    const Status made = files.MakeDirectory(LineagePath(root));
    if (!made.ok() && made.code() != Code::kAlreadyExists) return made;
  }
  // Also after a crash between making it and syncing it.
  PERDURE_RETURN_IF_ERROR(files.SyncDirectory(root));
  return file;
}

Result<Generation> HighestGeneration(Files& files, const std::string& root) {
  Generation highest(0);
  const Result<std::vector<DirectoryEntry>> entries = files.List(LineagePath(root));
  if (!entries.ok() && entries.status().code() == Code::kNotFound) return highest;
  PERDURE_RETURN_IF_ERROR(entries.status());
  for (const DirectoryEntry& entry : *entries) {
    for (const std::optional<Generation>& found :
         {ParseClaimName(entry.name), ParseForkName(entry.name)}) {
      if (found.has_value() && highest < *found) highest = *found;
    }
  }
  return highest;
}

Result<Claimant> ReadClaimant(Files& files, const std::string& root, Generation generation) {
  const std::string path = JoinPath(LineagePath(root), ClaimName(generation));
  PERDURE_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(files, path, kSmallFileBytesMax));
  PERDURE_RETURN_IF_ERROR(CheckSeal(text, path).status());
  PERDURE_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, path));
  Claimant claimant;
  PERDURE_ASSIGN_OR_RETURN(claimant.host, JsonText(json, "host", path));
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t pid, JsonCount(json, "pid", path));
  claimant.pid = static_cast<int>(pid);
  PERDURE_ASSIGN_OR_RETURN(claimant.created, JsonText(json, "created", path));
  return claimant;
}

Status CheckNotFenced(Files& files, const std::string& root, Generation generation) {
  PERDURE_ASSIGN_OR_RETURN(const Generation highest, HighestGeneration(files, root));
  if (highest <= generation) return Ok();
  return Status(Code::kFenced, fmt::format("generation {} is fenced: generation {} has claimed {}",
                                           generation.value(), highest.value(), root));
}

Status ClaimGeneration(Files& files, const std::string& root, const std::string& job,
                       Generation generation, WallTime now) {
  PERDURE_RETURN_IF_ERROR(
      EnsureRoot(files, root, job, now).status().WithContext("checkpoint directory"));
  PERDURE_ASSIGN_OR_RETURN(const Generation highest, HighestGeneration(files, root));
  if (highest >= generation) return Taken(generation, highest);
  const Status published =
      PublishExclusive(files, LineagePath(root), ClaimName(generation), ClaimText(generation, now));
  if (published.code() == Code::kAlreadyExists) return Taken(generation, generation);
  if (!published.ok()) {
    // A higher claimant clears away the temporary files of those below it: that is its answer.
    const Status fenced = CheckNotFenced(files, root, generation);
    return fenced.code() == Code::kFenced ? fenced : published;
  }
  PERDURE_RETURN_IF_ERROR(CheckNotFenced(files, root, generation));
  PERDURE_RETURN_IF_ERROR(MoveOldAttemptsToTrash(files, root, generation));
  RemoveOldTemporaries(files, root, generation);
  return Ok();
}

Result<Generation> ClaimNextGeneration(Files& files, const std::string& root,
                                       const std::string& job, Generation at_least, WallTime now) {
  for (int i = 0; i < kClaimTriesMax; ++i) {
    PERDURE_ASSIGN_OR_RETURN(const Generation highest, HighestGeneration(files, root));
    const Generation next = std::max(highest.Next(), at_least);
    const Status claimed = ClaimGeneration(files, root, job, next, now);
    if (claimed.ok()) return next;
    // Somebody else was faster: the number after theirs.
    if (claimed.code() != Code::kFenced) return claimed;
  }
  return Status(Code::kUnavailable,
                fmt::format("{} other processes claimed a generation on {} at the same time",
                            kClaimTriesMax, root));
}

Result<std::vector<Fork>> ReadForks(Files& files, const std::string& root) {
  std::vector<Fork> forks;
  const std::string lineage = LineagePath(root);
  const Result<std::vector<DirectoryEntry>> entries = files.List(lineage);
  if (!entries.ok() && entries.status().code() == Code::kNotFound) return forks;
  PERDURE_RETURN_IF_ERROR(entries.status());
  for (const DirectoryEntry& entry : *entries) {
    const std::optional<Generation> generation = ParseForkName(entry.name);
    if (!generation.has_value()) continue;
    const std::string path = JoinPath(lineage, entry.name);
    PERDURE_ASSIGN_OR_RETURN(const std::string text,
                             ReadWholeFile(files, path, kSmallFileBytesMax));
    PERDURE_ASSIGN_OR_RETURN(Fork fork, ParseFork(text, path));
    if (fork.generation != *generation) {
      return Status(Code::kDataLoss,
                    fmt::format("{} is the fork of generation {}", path, fork.generation.value()));
    }
    forks.push_back(std::move(fork));
  }
  return forks;
}

Status WriteFork(Files& files, const std::string& root, const Fork& fork) {
  PERDURE_RETURN_IF_ERROR(CheckNotFenced(files, root, fork.generation));
  const Status published =
      PublishExclusive(files, LineagePath(root), ForkName(fork.generation), FormatFork(fork));
  if (published.ok()) return published;
  // As above: what was cleared away by a newer generation is no fault of the disk.
  const Status fenced = CheckNotFenced(files, root, fork.generation);
  return fenced.code() == Code::kFenced ? fenced : published;
}

}  // namespace perdure
