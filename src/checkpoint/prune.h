// Retention by hand, for a root whose job has ended: docs/commit-protocol.md, "One deleter".
#pragma once

#include <string>
#include <vector>

#include "checkpoint/deleter.h"
#include "perdure/clock.h"
#include "perdure/status.h"
#include "storage/files.h"

namespace perdure {

struct PruneOptions {
  RetentionPolicy policy;
  bool dry_run = false;
  // Take the right to delete from a generation that may still be at work: it can commit no more.
  bool fence = false;
};

struct PruneReport {
  std::vector<RetentionVerdict> verdicts;  // newest first
  std::vector<std::string> deleted;        // names that are gone; none in a dry run
};

// Applies the policy to ROOT, and empties the trash.
//   1 the highest claim is looked at: kFailedPrecondition when its holder lives, or when it was on
//     another machine, where that cannot be told; unless `fence`
//   2 the next generation is claimed: from here on this process is the one deleter (CKPT-9), and a
//     job that is at work after all finds itself fenced at its next commit, with nothing lost
//   3 as the head generation would: retire, fsync of ROOT, delete
// A dry run looks and takes nothing.
Result<PruneReport> PruneCheckpoints(Files& files, const std::string& root,
                                     const PruneOptions& options, WallTime now);

}  // namespace perdure
