// Files of a program's own format inside a checkpoint: parts/<part>/rank-00000-of-00004/…, one
// directory per part and rank, below it whatever the program writes.
//
// Protocol (steps 2 and 4 of docs/commit-protocol.md, for one rank):
//   1 End, training thread: a directory of this rank's own is made on the root. It is named like an
//     attempt, so whatever a crash leaves of it is swept with the attempts. Each part writes into
//     it; from then on the program may change its state
//   2 the saver, in the attempt: every file of each part is fsynced and hashed, every directory
//     fsynced, the lowest first
//   3 the part's directory is renamed into the attempt, and what leads to it is fsynced; only then
//     is it reported, so the manifest names nothing that is not durable (CKPT-2)
// A directory can be moved once, so a save with such parts is not tried again.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/lineage.h"
#include "checkpoint/manifest.h"
#include "perdure/ids.h"
#include "perdure/status.h"
#include "perdure/tensor.h"
#include "storage/files.h"

namespace perdure {

// A part of the program that reads and writes files itself.
struct ForeignPart {
  std::string name;
  std::function<Status(const std::string& directory)> write;
  std::function<Status(const std::string& directory)> read;
  WorldChange on_world_change = WorldChange::kError;
};

// By part.
using ForeignFiles = std::map<std::string, std::vector<ForeignFile>>;

// More than these of one rank are refused, naming the part.
inline constexpr std::size_t kForeignFilesMax = 100'000;
inline constexpr int kForeignDepthMax = 16;

// Step 1. The directory into which every part has written; "" without parts. What the program
// throws is an error like those that it returns; nothing is left behind then.
Result<std::string> WriteForeign(Files& files, const std::string& root, const CheckpointId& id,
                                 const std::vector<ForeignPart>& parts);

// Steps 2 and 3: from `written` (of WriteForeign) into `attempt`. kInvalidArgument: something that
// is neither a file nor a directory, or a name that a manifest cannot hold.
Result<ForeignFiles> TakeForeign(Files& files, const std::string& written,
                                 const std::string& attempt, Rank rank, int world);

// What WriteForeign made and nobody took. Errors are logged: the next claim sweeps it.
void DropForeign(Files& files, const std::string& written);

// Of a checkpoint in `directory`: the directory of a part and the rank that reads it.
std::string ForeignDirectory(const std::string& directory, const std::string& part, Rank rank,
                             int world);

// Every byte of one file (CKPT-6). kDataLoss names it; other errors are the disk's.
Status VerifyForeignFile(Files& files, const std::string& directory, const std::string& part,
                         const ForeignFile& file);

// What `part` of a program reads from a checkpoint.
struct ForeignRead {
  std::string difference;                 // not empty: the restore is refused
  bool recompute = false;                 // nothing is read
  Rank from;                              // whose directory
  std::vector<const ForeignFile*> files;  // in it
};
// Pure.
ForeignRead PlanForeign(const Manifest& manifest, const ForeignPart& part, Rank rank, int world);

// Calls into the program; what it throws becomes an error. `doing` goes in front of any.
Status CallProgram(const std::function<Status(const std::string&)>& call,
                   const std::string& directory, const std::string& doing);

}  // namespace perdure
