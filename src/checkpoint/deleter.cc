#include "checkpoint/deleter.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/log.h"
#include "checkpoint/catalog.h"
#include "checkpoint/claim.h"
#include "checkpoint/pins.h"
#include "storage/file_store.h"

namespace perdure {
namespace {

std::string TrashPath(const std::string& root, const CheckpointId& id) {
  return JoinPath(root, FormatName({NameKind::kTrash, id, ""}));
}

std::string CommittedPath(const std::string& root, const CheckpointId& id) {
  return JoinPath(root, CommittedName(id));
}

// ENOENT: somebody has put it back already.
Status PutBack(Files& files, const std::string& root, const CheckpointId& id) {
  const Status renamed =
      files.Rename(TrashPath(root, id), CommittedPath(root, id), Files::Replace::kNo);
  if (renamed.code() == Code::kNotFound || renamed.code() == Code::kAlreadyExists) return Ok();
  PERDURE_RETURN_IF_ERROR(renamed);
  Log().info("{} was retired and is needed again: it is back", CommittedName(id));
  return files.SyncDirectory(root);
}

bool IsGood(Files& files, const DeleterOptions& options, const CheckpointName& name) {
  const Result<LoadedManifest> loaded = LoadManifest(files, options.root, name, options.root_id);
  return loaded.ok() &&
         CheckSizes(files, JoinPath(options.root, FormatName(name)), loaded->manifest).ok();
}

// Of `names`, the retired checkpoints that the lineage cannot do without: a rank 0 that was cut off
// may retire, after it looked at the claims, what its successor has just gone on from (CKPT-5).
std::vector<CheckpointName> StillNeeded(Files& files, const DeleterOptions& options,
                                        const Lineage& lineage,
                                        const std::vector<CheckpointName>& names) {
  int good = 0;
  std::vector<CheckpointName> retired;
  for (const CheckpointName& name : names) {
    if (!Contains(lineage, name.id)) continue;
    if (name.kind == NameKind::kTrash) retired.push_back(name);
    if (name.kind == NameKind::kCommitted) good += IsGood(files, options, name) ? 1 : 0;
  }
  std::sort(retired.begin(), retired.end(), [](const CheckpointName& a, const CheckpointName& b) {
    return NewerOnLineage(a.id, b.id);
  });
  const std::optional<CheckpointId> begun_from = BegunFrom(lineage);
  std::vector<CheckpointName> needed;
  for (const CheckpointName& name : retired) {
    const bool too_few = good < options.policy.keep_last_n;
    if (!too_few && begun_from != name.id) continue;
    if (!IsGood(files, options, name)) continue;
    needed.push_back(name);
    ++good;
  }
  return needed;
}

Status Retire(Files& files, const DeleterOptions& options, const CheckpointId& id) {
  FileStore store(files, options.root);
  PERDURE_RETURN_IF_ERROR(CheckNotFenced(store, options.claim));  // CKPT-9
  const Status renamed = files.Rename(CommittedPath(options.root, id), TrashPath(options.root, id),
                                      Files::Replace::kNo);
  if (renamed.code() == Code::kNotFound) return Ok();  // gone already
  PERDURE_RETURN_IF_ERROR(renamed);
  PERDURE_ASSIGN_OR_RETURN(const bool pinned, IsPinned(store, id));
  return pinned ? PutBack(files, options.root, id) : Ok();
}

// What a program wrote where it was told to: all of it is the checkpoint's. Links are removed, not
// followed.
Status DeleteTree(Files& files, const std::string& path) {
  const Result<std::vector<DirectoryEntry>> entries = files.List(path);
  if (entries.status().code() == Code::kNotFound) return Ok();
  PERDURE_RETURN_IF_ERROR(entries.status());
  for (const DirectoryEntry& entry : *entries) {
    const std::string below = JoinPath(path, entry.name);
    const Status removed =
        entry.kind == FileKind::kDirectory ? DeleteTree(files, below) : files.Remove(below);
    if (!removed.ok() && removed.code() != Code::kNotFound) return removed;
  }
  const Status removed = files.Remove(path);
  return removed.code() == Code::kNotFound ? Ok() : removed;
}

}  // namespace

Status DeleteTrash(Files& files, const std::string& path) {
  const Result<std::vector<DirectoryEntry>> entries = files.List(path);
  if (entries.status().code() == Code::kNotFound) return Ok();
  PERDURE_RETURN_IF_ERROR(entries.status());
  for (const DirectoryEntry& entry : *entries) {
    const bool ours =
        IsShardName(entry.name) || entry.name == kManifestName || entry.name == kManifestTempName;
    const bool parts = entry.name == kForeignDirectory && entry.kind == FileKind::kDirectory;
    if (!parts && (!ours || entry.kind != FileKind::kFile)) {
      Log().warn("{} holds {}, which is not part of a checkpoint: left alone", path, entry.name);
      return Ok();
    }
  }
  // The manifest first: what is half deleted is no checkpoint.
  std::vector<std::string> names;
  for (const DirectoryEntry& entry : *entries) names.push_back(entry.name);
  std::stable_partition(names.begin(), names.end(),
                        [](const std::string& name) { return name == kManifestName; });
  for (const std::string& name : names) {
    if (name == kForeignDirectory) {
      PERDURE_RETURN_IF_ERROR(DeleteTree(files, JoinPath(path, name)));
      continue;
    }
    const Status removed = files.Remove(JoinPath(path, name));
    if (!removed.ok() && removed.code() != Code::kNotFound) return removed;
  }
  const Status removed = files.Remove(path);
  return removed.code() == Code::kNotFound ? Ok() : removed;
}

Result<std::vector<RetentionVerdict>> JudgeCheckpoints(Files& files, const std::string& root,
                                                       const std::string& root_id,
                                                       const Lineage& lineage,
                                                       const RetentionPolicy& policy) {
  PERDURE_ASSIGN_OR_RETURN(const std::vector<CheckpointName> names, ListCheckpoints(files, root));
  FileStore store(files, root);
  PERDURE_ASSIGN_OR_RETURN(const auto pins, ReadPins(store));
  std::vector<KeptCheckpoint> checkpoints;
  for (const CheckpointName& name : names) {
    if (name.kind != NameKind::kCommitted) continue;
    const Result<LoadedManifest> loaded = LoadManifest(files, root, name, root_id);
    // Without a manifest of this root it is somebody else's, or not ours to judge.
    if (!loaded.ok()) continue;
    const std::string text = FormatName(name);
    const bool good = CheckSizes(files, JoinPath(root, text), loaded->manifest).ok();
    checkpoints.push_back({name.id, good, pins.count(text) != 0});
  }
  return PlanRetention(lineage, checkpoints, policy);
}

Status EmptyTrash(Files& files, const DeleterOptions& options, const Lineage& lineage,
                  DeleterReport& report) {
  // What is put back and what is deleted comes from one listing: what is retired after it was made
  // is looked at next time.
  PERDURE_ASSIGN_OR_RETURN(const std::vector<CheckpointName> names,
                           ListCheckpoints(files, options.root));
  const std::vector<CheckpointName> needed = StillNeeded(files, options, lineage, names);
  FileStore store(files, options.root);
  for (const CheckpointName& name : names) {
    const bool trash = name.kind == NameKind::kTrash || name.kind == NameKind::kTrashedAttempt;
    if (!trash || name.id.generation > options.claim) continue;
    PERDURE_RETURN_IF_ERROR(CheckNotFenced(store, options.claim));  // CKPT-9
    if (name.kind == NameKind::kTrash) {
      PERDURE_ASSIGN_OR_RETURN(const bool pinned, IsPinned(store, name.id));
      if (pinned || std::find(needed.begin(), needed.end(), name) != needed.end()) {
        PERDURE_RETURN_IF_ERROR(PutBack(files, options.root, name.id));
        continue;
      }
    }
    PERDURE_RETURN_IF_ERROR(DeleteTrash(files, JoinPath(options.root, FormatName(name))));
    report.deleted.push_back(FormatName(name));
  }
  return Ok();
}

Result<DeleterReport> RunRetention(Files& files, const DeleterOptions& options,
                                   const Lineage& lineage) {
  DeleterReport report;
  PERDURE_RETURN_IF_ERROR(EmptyTrash(files, options, lineage, report));
  PERDURE_ASSIGN_OR_RETURN(report.verdicts, JudgeCheckpoints(files, options.root, options.root_id,
                                                             lineage, options.policy));
  bool moved = false;
  for (const RetentionVerdict& verdict : report.verdicts) {
    if (!verdict.retire) continue;
    PERDURE_RETURN_IF_ERROR(Retire(files, options, verdict.id));
    Log().debug("retired {}: {}", CommittedName(verdict.id), verdict.reason);
    moved = true;
  }
  if (moved) PERDURE_RETURN_IF_ERROR(files.SyncDirectory(options.root));
  return report;
}

}  // namespace perdure
