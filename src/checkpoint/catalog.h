// What lies in a checkpoint root, and whether a member of it is whole. Threads: any.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "perdure/status.h"
#include "storage/files.h"

namespace perdure {

// Every directory of ROOT whose name is one of ours.
Result<std::vector<CheckpointName>> ListCheckpoints(Files& files, const std::string& root);

struct LoadedManifest {
  Manifest manifest;
  std::string digest;
};

// The manifest of ROOT/name. kNotFound: there is none, so this is no checkpoint; kDataLoss: it is
// not whole, or describes something else than `name`, or belongs to another root; other errors are
// the disk's.
Result<LoadedManifest> LoadManifest(Files& files, const std::string& root,
                                    const CheckpointName& name, const std::string& root_id);

// The cheap check: every file is there and has its size. kDataLoss, or the disk's error.
Status CheckSizes(Files& files, const std::string& directory, const Manifest& manifest);

}  // namespace perdure
