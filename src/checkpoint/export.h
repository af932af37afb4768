// A way out of a checkpoint: plain safetensors files that any tool of the ecosystem opens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/contents.h"
#include "checkpoint/names.h"
#include "perdure/status.h"
#include "storage/files.h"

namespace perdure {

struct ExportOptions {
  // Tensors of this part, without "part." in front, as the program that made the part calls them:
  // what a state dict of the model has. Nothing: all tensors, with their full names.
  std::optional<std::string> part = "model";
  // Tensors go into another file before this one would hold more data, or a longer header than the
  // format allows; a tensor that is larger has a file of its own. 0: one file.
  std::int64_t shard_bytes_max = 0;
};

struct ExportReport {
  std::string path;                // the file; the index file when there are several
  std::vector<std::string> files;  // paths of those with tensors
  std::int64_t tensors = 0;
  std::int64_t bytes = 0;  // of all files
};

// Writes whole tensors, every byte verified on the way. A tensor with a hole is an error, and then
// no file of the export is left. Blobs stay behind: the format has no place for them.
//
// With shard_bytes_max `out` is a directory, made when it is missing: in it
// model-00001-of-0000N.safetensors … and, last, model.safetensors.index.json
// ("metadata.total_size", "weight_map"), by which Hugging Face's loaders find them; or
// model.safetensors when one file is enough. Without: `out` is the file, or a directory that is
// there, for model.safetensors.
//
// kAlreadyExists: never replaces a file, nor adds to a directory that already holds a
// model.safetensors or an index, since a loader would then read the wrong ones.
Result<ExportReport> ExportCheckpoint(Files& files, const std::string& root,
                                      const CheckpointName& name, const ExportOptions& options,
                                      const std::string& out, const WorkProgress& progress = {});

}  // namespace perdure
