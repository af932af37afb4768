// What is different between two checkpoints. Chunks whose hashes are equal are not read: two
// checkpoints of one layout that differ little are compared about as fast as their headers load.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/contents.h"
#include "checkpoint/names.h"
#include "perdure/status.h"
#include "storage/files.h"

namespace perdure {

struct ContentDifference {
  std::string name;
  std::string_view kind;  // "tensor", "blob", or "file": one of the program's own, "parts/<part>/…"
  // "only in A", "only in B", "dtype F32 in A, BF16 in B", "shape [2] in A, [3] in B", "values",
  // "bytes" (of a file)
  std::string what;
  std::int64_t different = 0;  // elements ("values" only); bytes of a blob
  std::int64_t elements = 0;
};

struct DiffReport {
  std::vector<ContentDifference> differences;  // in the order of names
  std::int64_t same = 0;        // tensors, blobs and files that are equal in every bit
  std::int64_t bytes_read = 0;  // of data; headers come on top
};

struct CheckpointPlace {
  std::string root;
  CheckpointName name;
};

// kDataLoss when one of them is not what was written.
Result<DiffReport> DiffCheckpoints(Files& files, const CheckpointPlace& a, const CheckpointPlace& b,
                                   const WorkProgress& progress = {});

// Elements of `bits` width whose bits are not the same. Both spans have the same length. Pure.
std::int64_t CountDifferent(int bits, std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace perdure
