// What of a checkpoint goes where in a program, and what does not fit. Pure.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/parts.h"

namespace perdure {

struct RestorePlan {
  // What differs between program and checkpoint, one line each; any of them refuses the restore.
  std::vector<std::string> differences;
  // The checkpoint's names that this rank accounts for: it reads them, or a rule says why not.
  std::set<std::string> used;
  // What to read, under the checkpoint's names, and into which piece of the program's structure.
  Structure reads;
  std::vector<std::size_t> into;
  // Per piece of the structure. One that is neither gets its bytes under another of its names.
  std::vector<bool> read;
  std::vector<bool> recompute;
  // Pairs of pieces that are one memory in the program and two tensors in the checkpoint: what is
  // read must be the same.
  std::vector<std::pair<std::size_t, std::size_t>> alike;
};

// Strict: names, dtypes and global shapes must be the same; of the names of one memory the
// checkpoint needs to have one. Fills in the sizes of the blobs, which
// only the checkpoint knows. `world`: the ranks that go on; WorldChange applies when others saved.
RestorePlan PlanRestore(const Manifest& manifest, int world, LocalState& state);

}  // namespace perdure
