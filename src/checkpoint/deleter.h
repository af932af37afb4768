// The one deleter of a root: step 10 of docs/commit-protocol.md, and `perdure checkpoint prune`.
// Whoever holds the highest claim is it; everybody else deletes nothing (CKPT-9).
//
// Protocol, the claims being read again before each removal:
//   1 what lies in the trash is deleted: the manifest first, so that what is half deleted is no
//     checkpoint; what is pinned, or what the lineage cannot do without, is put back instead
//   2 the pure plan (retention.h) is made from names, manifests, sizes and pins
//   3 what may go is renamed into the trash; a pin that came in between brings it back (pins.h)
//   4 fsync of ROOT
// Inside a directory only what a checkpoint consists of is deleted; one that holds anything else is
// left alone (CKPT-5).
#pragma once

#include <string>
#include <vector>

#include "checkpoint/lineage.h"
#include "checkpoint/names.h"
#include "checkpoint/retention.h"
#include "perdure/ids.h"
#include "perdure/status.h"
#include "storage/files.h"

namespace perdure {

struct DeleterOptions {
  std::string root;
  std::string root_id;
  Generation claim;  // the claim under which it deletes
  RetentionPolicy policy;
};

struct DeleterReport {
  std::vector<RetentionVerdict> verdicts;  // newest first
  std::vector<std::string> deleted;        // names in the trash that are gone
};

// What would be decided now. Reads only.
Result<std::vector<RetentionVerdict>> JudgeCheckpoints(Files& files, const std::string& root,
                                                       const std::string& root_id,
                                                       const Lineage& lineage,
                                                       const RetentionPolicy& policy);

// Steps 1 to 4. The first error ends it; the next commit goes on.
Result<DeleterReport> RunRetention(Files& files, const DeleterOptions& options,
                                   const Lineage& lineage);

// Step 1 alone.
Status EmptyTrash(Files& files, const DeleterOptions& options, const Lineage& lineage,
                  DeleterReport& report);

// Deletes a directory of ours that carries a trash name.
Status DeleteTrash(Files& files, const std::string& path);

}  // namespace perdure
