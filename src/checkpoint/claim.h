// Taking a generation on a checkpoint root: the root file, the claims (which fence older
// generations) and the forks (which say what a generation descends from). The formats are in
// docs/formats/root-and-lineage.md.
//
// All of these touch the disk and keep the order that docs/commit-protocol.md gives. Threads: any.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/lineage.h"
#include "perdure/clock.h"
#include "perdure/ids.h"
#include "perdure/status.h"
#include "storage/files.h"

namespace perdure {

// The root's identity. Made once, never changed.
struct RootFile {
  std::string root_id;  // 32 hex digits, random
  std::string job;
};

// Reads ROOT/perdure.json. kNotFound: `root` is no checkpoint root (yet).
Result<RootFile> ReadRootFile(Files& files, const std::string& root);

// Makes ROOT (with its parents), its root file and its lineage directory where they are missing;
// kFailedPrecondition when the root belongs to another job.
Result<RootFile> EnsureRoot(Files& files, const std::string& root, const std::string& job,
                            WallTime now);

// Claims exactly this generation, before anything of the root is listed for a restore. kFenced when
// the number or a higher one is taken. Afterwards the attempts of older generations lie in the
// trash, where a late rename of theirs does not find them.
Status ClaimGeneration(Files& files, const std::string& root, const std::string& job,
                       Generation generation, WallTime now);

// Claims the next free generation, at least `at_least`.
Result<Generation> ClaimNextGeneration(Files& files, const std::string& root,
                                       const std::string& job, Generation at_least, WallTime now);

// The highest generation that ROOT knows of, from claims and forks; 0 when there is none.
Result<Generation> HighestGeneration(Files& files, const std::string& root);

// Who took a generation's number, as its claim says.
struct Claimant {
  std::string host;
  int pid = 0;
  std::string created;  // RFC 3339
};
Result<Claimant> ReadClaimant(Files& files, const std::string& root, Generation generation);

// kFenced, naming the newer claim, unless `generation` is the highest (CKPT-9).
Status CheckNotFenced(Files& files, const std::string& root, Generation generation);

// Every fork of ROOT. An unreadable one is an error that names it, never skipped.
Result<std::vector<Fork>> ReadForks(Files& files, const std::string& root);

// How every small file of a root comes to be: a temporary file, fsync, link() to the name, fsync of
// the directory. It is whole and durable, or not there. kAlreadyExists when the name is taken by
// something else than `text`.
Status PublishExclusive(Files& files, const std::string& directory, const std::string& name,
                        const std::string& text);

// Publishes this generation's fork. Once per generation.
Status WriteFork(Files& files, const std::string& root, const Fork& fork);

}  // namespace perdure
