// Taking a generation on a checkpoint root: the root file, the claims (which fence older
// generations) and the forks (which say what a generation descends from). The formats are in
// docs/formats/root-and-lineage.md. All of them are values of a store whose top is the root.
//
// The order of their steps is that of docs/commit-protocol.md. Threads: any.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/lineage.h"
#include "perdure/clock.h"
#include "perdure/ids.h"
#include "perdure/status.h"
#include "storage/files.h"
#include "storage/store.h"

namespace perdure {

// The root's identity. Made once, never changed.
struct RootFile {
  std::string root_id;  // 32 hex digits, random
  std::string job;
};

// Reads perdure.json. kNotFound: this is no checkpoint root (yet).
Result<RootFile> ReadRootFile(Store& store);

// Makes the root file where it is missing; kFailedPrecondition when the root belongs to another
// job.
Result<RootFile> EnsureRoot(Store& store, const std::string& job, WallTime now);

// Takes exactly this generation's number. kFenced when it or a higher one is taken.
Status PublishClaim(Store& store, const std::string& job, Generation generation, WallTime now);

// PublishClaim on the root in a directory, before anything of it is listed for a restore.
// Afterwards the attempts of older generations lie in the trash, where a late rename of theirs does
// not find them.
Status ClaimGeneration(Files& files, const std::string& root, const std::string& job,
                       Generation generation, WallTime now);

// Claims the next free generation, at least `at_least`.
Result<Generation> ClaimNextGeneration(Files& files, const std::string& root,
                                       const std::string& job, Generation at_least, WallTime now);

// The highest generation that the root knows of, from claims and forks; 0 when there is none.
Result<Generation> HighestGeneration(Store& store);

// Who took a generation's number, as its claim says.
struct Claimant {
  std::string host;
  int pid = 0;
  std::string created;  // RFC 3339
};
Result<Claimant> ReadClaimant(Store& store, Generation generation);

// kFenced, naming the newer claim, unless `generation` is the highest (CKPT-9).
Status CheckNotFenced(Store& store, Generation generation);

// Every fork of the root. An unreadable one is an error that names it, never skipped.
Result<std::vector<Fork>> ReadForks(Store& store);

// Publishes this generation's fork. Once per generation.
Status WriteFork(Store& store, const Fork& fork);

}  // namespace perdure
