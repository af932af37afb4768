// A restore that nobody needs yet: shows, before the day on which it counts, that a checkpoint can
// be brought back, by the same way as a restore takes (reader.h) and not only by the hashes of its
// chunks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/contents.h"
#include "checkpoint/names.h"
#include "perdure/status.h"
#include "storage/files.h"

namespace perdure {

struct DrillReport {
  std::string name;
  std::int64_t tensors = 0;
  std::int64_t blobs = 0;
  std::int64_t bytes = 0;             // put together in memory
  std::vector<std::string> problems;  // empty: everything is what was saved
};

// Puts every tensor and blob together as a world of one rank would, then cuts the saved pieces out
// of that memory again and hashes them: they must have the hashes with which they were saved. In
// groups, so that a checkpoint may be larger than the memory of this machine; one tensor must fit.
DrillReport DrillRestore(Files& files, const std::string& root, const CheckpointName& name,
                         const WorkProgress& progress = {});

}  // namespace perdure
