// Protocol of a claim (rank 0, before anything is listed for a restore):
//   1 the root's perdure.json exists and names this job
//   2 gN.claim is created, which fails if it exists
//   3 no higher claim appeared meanwhile
//   4 every attempt of an older generation is renamed into the trash, fsync of ROOT: a late rename
//     of a cut-off rank finds nothing
// A fork gN.json is created like 2.
#include "checkpoint/claim.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "base/posix.h"
#include "checkpoint/json.h"
#include "checkpoint/names.h"
#include "storage/file_store.h"

namespace perdure {
namespace {

constexpr std::int64_t kSmallFileBytesMax = std::int64_t{16} << 20;
constexpr int kClaimTriesMax = 16;

std::string LineageKey(const std::string& name) {
  return JoinKey(kLineageDirectory, name);
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

// Of the claims and forks that died halfway.
void RemoveOldTemporaries(FileStore& store, Generation generation) {
  store.RemoveTemporaries(std::string(kLineageDirectory), [&](std::string_view name) {
    std::optional<Generation> owner = ParseClaimName(name);
    if (!owner.has_value()) owner = ParseForkName(name);
    return owner.has_value() && *owner < generation;
  });
}

Status Taken(Generation mine, Generation found) {
  return Status(Code::kFenced,
                fmt::format("generation {} cannot be claimed: generation {} has been claimed on "
                            "this checkpoint directory",
                            mine.value(), found.value()));
}

}  // namespace

Result<RootFile> ReadRootFile(Store& store) {
  const std::string key(kRootFileName);
  const std::string path = store.Where(key);
  PERDURE_ASSIGN_OR_RETURN(const std::string text, GetWhole(store, key, kSmallFileBytesMax));
  PERDURE_RETURN_IF_ERROR(CheckSeal(text, path).status());
  PERDURE_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, path));
  PERDURE_RETURN_IF_ERROR(JsonFormatVersion(json, /*newest=*/1, path).status());
  RootFile file;
  PERDURE_ASSIGN_OR_RETURN(file.root_id, JsonText(json, "root_id", path));
  PERDURE_ASSIGN_OR_RETURN(file.job, JsonText(json, "job", path));
  return file;
}

Result<RootFile> EnsureRoot(Store& store, const std::string& job, WallTime now) {
  Result<RootFile> file = ReadRootFile(store);
  if (file.status().code() == Code::kNotFound) {
    const Status created =
        store.Create(std::string(kRootFileName),
                     SealJson(fmt::format("{{\n\"format_version\": 1,\n\"root_id\": \"{}\",\n"
                                          "\"job\": {},\n\"created\": \"{}\",\n",
                                          RandomHex(16), QuoteJson(job), FormatWallTime(now))));
    if (!created.ok() && created.code() != Code::kAlreadyExists) return created;
    file = ReadRootFile(store);
  }
  PERDURE_RETURN_IF_ERROR(file.status());
  if (file->job == job) return file;
  return Status(Code::kFailedPrecondition,
                fmt::format("{} holds the checkpoints of job \"{}\", not of \"{}\"; name another "
                            "checkpoint directory",
                            store.Where(""), file->job, job));
}

Result<Generation> HighestGeneration(Store& store) {
  Generation highest(0);
  PERDURE_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           store.List(std::string(kLineageDirectory)));
  for (const std::string& name : names) {
    for (const std::optional<Generation>& found : {ParseClaimName(name), ParseForkName(name)}) {
      if (found.has_value() && highest < *found) highest = *found;
    }
  }
  return highest;
}

Result<Claimant> ReadClaimant(Store& store, Generation generation) {
  const std::string key = LineageKey(ClaimName(generation));
  const std::string path = store.Where(key);
  PERDURE_ASSIGN_OR_RETURN(const std::string text, GetWhole(store, key, kSmallFileBytesMax));
  PERDURE_RETURN_IF_ERROR(CheckSeal(text, path).status());
  PERDURE_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, path));
  Claimant claimant;
  PERDURE_ASSIGN_OR_RETURN(claimant.host, JsonText(json, "host", path));
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t pid, JsonCount(json, "pid", path));
  claimant.pid = static_cast<int>(pid);
  PERDURE_ASSIGN_OR_RETURN(claimant.created, JsonText(json, "created", path));
  return claimant;
}

Status CheckNotFenced(Store& store, Generation generation) {
  PERDURE_ASSIGN_OR_RETURN(const Generation highest, HighestGeneration(store));
  if (highest <= generation) return Ok();
  return Status(Code::kFenced, fmt::format("generation {} is fenced: generation {} has claimed {}",
                                           generation.value(), highest.value(), store.Where("")));
}

Status PublishClaim(Store& store, const std::string& job, Generation generation, WallTime now) {
  PERDURE_RETURN_IF_ERROR(EnsureRoot(store, job, now).status().WithContext("checkpoint directory"));
  PERDURE_ASSIGN_OR_RETURN(const Generation highest, HighestGeneration(store));
  if (highest >= generation) return Taken(generation, highest);
  const Status created =
      store.Create(LineageKey(ClaimName(generation)), ClaimText(generation, now));
  if (created.code() == Code::kAlreadyExists) return Taken(generation, generation);
  if (!created.ok()) {
    // A higher claimant clears away the temporary files of those below it: that is its answer.
    const Status fenced = CheckNotFenced(store, generation);
    return fenced.code() == Code::kFenced ? fenced : created;
  }
  return CheckNotFenced(store, generation);
}

Status ClaimGeneration(Files& files, const std::string& root, const std::string& job,
                       Generation generation, WallTime now) {
  FileStore store(files, root);
  PERDURE_RETURN_IF_ERROR(PublishClaim(store, job, generation, now));
  PERDURE_RETURN_IF_ERROR(MoveOldAttemptsToTrash(files, root, generation));
  RemoveOldTemporaries(store, generation);
  return Ok();
}

Result<Generation> ClaimNextGeneration(Files& files, const std::string& root,
                                       const std::string& job, Generation at_least, WallTime now) {
  FileStore store(files, root);
  for (int i = 0; i < kClaimTriesMax; ++i) {
    PERDURE_ASSIGN_OR_RETURN(const Generation highest, HighestGeneration(store));
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

Result<std::vector<Fork>> ReadForks(Store& store) {
  std::vector<Fork> forks;
  PERDURE_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           store.List(std::string(kLineageDirectory)));
  for (const std::string& name : names) {
    const std::optional<Generation> generation = ParseForkName(name);
    if (!generation.has_value()) continue;
    const std::string path = store.Where(LineageKey(name));
    PERDURE_ASSIGN_OR_RETURN(const std::string text,
                             GetWhole(store, LineageKey(name), kSmallFileBytesMax));
    PERDURE_ASSIGN_OR_RETURN(Fork fork, ParseFork(text, path));
    if (fork.generation != *generation) {
      return Status(Code::kDataLoss,
                    fmt::format("{} is the fork of generation {}", path, fork.generation.value()));
    }
    forks.push_back(std::move(fork));
  }
  return forks;
}

Status WriteFork(Store& store, const Fork& fork) {
  PERDURE_RETURN_IF_ERROR(CheckNotFenced(store, fork.generation));
  const Status created = store.Create(LineageKey(ForkName(fork.generation)), FormatFork(fork));
  if (created.ok()) return created;
  // As above: what was cleared away by a newer generation is no fault of the disk.
  const Status fenced = CheckNotFenced(store, fork.generation);
  return fenced.code() == Code::kFenced ? fenced : created;
}

}  // namespace perdure
