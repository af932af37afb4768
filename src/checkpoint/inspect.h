// A checkpoint root as people look at it: what is there, and whether it is whole. Reads only; needs
// no job. Behind `perdure checkpoint`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/claim.h"
#include "checkpoint/contents.h"
#include "checkpoint/layout.h"
#include "checkpoint/lineage.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "perdure/clock.h"
#include "perdure/status.h"
#include "storage/files.h"

namespace perdure {

struct CheckpointSummary {
  std::string name;
  // "committed", "attempt", "trash", "foreign" (named like ours, and not ours).
  std::string kind;
  CheckpointId id;
  std::int64_t bytes = 0;
  int world = 0;
  std::string created;
  bool on_lineage = false;
  bool pinned = false;
  std::string pin_reason;
  std::string problem;  // empty: manifest and sizes are right
};

// Seconds since it was created; nothing when it does not say.
std::optional<std::int64_t> AgeSeconds(const CheckpointSummary& summary, WallTime now);

// Newest first. kNotFound: `root` is no checkpoint root.
Result<std::vector<CheckpointSummary>> ListForPeople(Files& files, const std::string& root);

// The committed (or retired) checkpoint that `which` means: a directory name, a step number when
// only one of the lineage has it, or "" for the newest good one of the lineage. kNotFound says what
// there is.
Result<CheckpointName> FindCheckpoint(Files& files, const std::string& root,
                                      const std::string& which);

Result<Manifest> ReadManifest(Files& files, const std::string& root, const CheckpointName& name);

struct VerifyReport {
  std::string name;
  std::int64_t bytes = 0;             // read and checked
  std::vector<std::string> problems;  // empty: every byte is the one that was written
};

// Reads every byte of a checkpoint. Goes on after a problem, to name them all.
VerifyReport VerifyCheckpoint(Files& files, const std::string& root, const CheckpointName& name,
                              const WorkProgress& progress = {});

// The root file; kNotFound says that `root` is no checkpoint directory.
Result<RootFile> RootOf(Files& files, const std::string& root);
// The lineage of the head; empty before the first fork.
Result<Lineage> HeadLineage(Files& files, const std::string& root);
// A whole tensor as something to be read.
Piece WholePiece(const std::string& name, const TensorFacts& facts);

}  // namespace perdure
