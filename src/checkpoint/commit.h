// Rank 0's steps of a save: docs/commit-protocol.md, steps 3, 6, 7 and 9.
#pragma once

#include <string>

#include "checkpoint/manifest.h"
#include "perdure/status.h"
#include "storage/files.h"
#include "storage/store.h"

namespace perdure {

struct CommitResult {
  std::string attempt;  // whose bytes are there: ours, or those of an earlier attempt
  std::string name;
  Status durable;  // an error: visible, but the root's fsync failed
};

// Step 3: an empty, durable directory for the attempt.
Status MakeAttempt(Files& files, const std::string& root, const CheckpointId& id,
                   const std::string& attempt);

// Steps 6 and 7: the manifest, then the rename. On an error nothing has become visible, except what
// the result of an OK call says. kFenced (CKPT-9) when a newer generation has claimed the root.
Result<CommitResult> CommitAttempt(Files& files, const std::string& root, const Manifest& manifest);

// Step 9: ROOT/latest, for people.
Status WriteLatest(Store& store, const std::string& name);

// A failed attempt leaves: renamed to the trash, then deleted. Best effort; does nothing when
// fenced.
void DiscardAttempt(Files& files, const std::string& root, const CheckpointId& id,
                    const std::string& attempt);

}  // namespace perdure
