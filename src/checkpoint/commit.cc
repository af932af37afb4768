#include "checkpoint/commit.h"

#include <fmt/format.h>

#include "base/log.h"
#include "checkpoint/catalog.h"
#include "checkpoint/claim.h"
#include "checkpoint/deleter.h"
#include "checkpoint/names.h"
#include "storage/file_store.h"

namespace perdure {
namespace {

std::string PathOf(const std::string& root, const CheckpointName& name) {
  return JoinPath(root, FormatName(name));
}

// What carries the final name after a rename that reported an error.
Result<CommitResult> ReadBack(Files& files, const std::string& root, const Manifest& manifest,
                              const Status& error) {
  const CheckpointName name{NameKind::kCommitted, manifest.id, ""};
  const Result<LoadedManifest> found = LoadManifest(files, root, name, manifest.root_id);
  // Same attempt: the rename took effect. Another one of this generation and step: as good.
  if (found.ok() && CheckSizes(files, PathOf(root, name), found->manifest).ok()) {
    return CommitResult{found->manifest.attempt, FormatName(name), Ok()};
  }
  if (error.code() == Code::kAlreadyExists) {
    return Status(Code::kFailedPrecondition,
                  fmt::format("{} exists and is not a checkpoint of this run ({}); move it away",
                              PathOf(root, name),
                              found.ok() ? "its files are not whole" : found.status().message()));
  }
  return error;
}

}  // namespace

Status MakeAttempt(Files& files, const std::string& root, const CheckpointId& id,
                   const std::string& attempt) {
  PERDURE_RETURN_IF_ERROR(files.MakeDirectory(PathOf(root, {NameKind::kAttempt, id, attempt})));
  return files.SyncDirectory(root);
}

Result<CommitResult> CommitAttempt(Files& files, const std::string& root,
                                   const Manifest& manifest) {
  const std::string attempt = PathOf(root, {NameKind::kAttempt, manifest.id, manifest.attempt});
  const CheckpointName name{NameKind::kCommitted, manifest.id, ""};
  // CKPT-2: by now every rank has reported that its shard and the name of it are durable.
  const std::string temp = JoinPath(attempt, kManifestTempName);
  PERDURE_RETURN_IF_ERROR(WriteWholeFile(files, temp, FormatManifest(manifest)));
  PERDURE_RETURN_IF_ERROR(
      files.Rename(temp, JoinPath(attempt, kManifestName), Files::Replace::kNo));
  PERDURE_RETURN_IF_ERROR(files.SyncDirectory(attempt));

  FileStore store(files, root);
  PERDURE_RETURN_IF_ERROR(CheckNotFenced(store, manifest.id.generation));  // CKPT-9
  CommitResult result{manifest.attempt, FormatName(name), Ok()};
  // CKPT-3: never over something that is there.
  const Status renamed = files.Rename(attempt, PathOf(root, name), Files::Replace::kNo);
  if (!renamed.ok()) {
    PERDURE_ASSIGN_OR_RETURN(result, ReadBack(files, root, manifest, renamed));
  }
  result.durable = files.SyncDirectory(root);  // the commit point
  return result;
}

Status WriteLatest(Store& store, const std::string& name) {
  return store.Put(std::string(kLatestName), name + "\n");
}

void DiscardAttempt(Files& files, const std::string& root, const CheckpointId& id,
                    const std::string& attempt) {
  FileStore store(files, root);
  if (!CheckNotFenced(store, id.generation).ok()) return;  // CKPT-9
  const std::string trash = PathOf(root, {NameKind::kTrashedAttempt, id, attempt});
  const Status renamed =
      files.Rename(PathOf(root, {NameKind::kAttempt, id, attempt}), trash, Files::Replace::kNo);
  if (renamed.code() == Code::kNotFound) return;
  const Status deleted = renamed.ok() ? DeleteTrash(files, trash) : renamed;
  if (!deleted.ok()) {
    Log().warn("the failed attempt {} stays for a later clean-up: {}", attempt, deleted.message());
  }
}

}  // namespace perdure
