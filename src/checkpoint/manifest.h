// What a checkpoint consists of: docs/formats/manifest.md. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/lineage.h"
#include "perdure/ids.h"
#include "perdure/status.h"
#include "perdure/tensor.h"

namespace perdure {

inline constexpr std::int64_t kManifestBytesMax = std::int64_t{1} << 30;

struct ManifestFile {
  std::string name;
  std::int64_t bytes = 0;
  std::int64_t header_bytes = 0;  // where the data begins
  std::string header_digest;      // XXH3-128 of those bytes
  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

// A file that the program wrote itself, in parts/<part>/.
struct ForeignFile {
  std::string name;  // "rank-00000-of-00004/…"
  std::int64_t bytes = 0;
  std::string digest;  // XXH3-128 of all of it
  friend bool operator==(const ForeignFile&, const ForeignFile&) = default;
};

struct TensorFacts {
  DType dtype = DType::kF32;
  Shape shape;  // global
  friend bool operator==(const TensorFacts&, const TensorFacts&) = default;
};

struct Manifest {
  std::string root_id;
  std::string job;
  CheckpointId id;
  std::string attempt;
  std::string created;  // RFC 3339
  int world = 0;
  std::map<std::string, int> mesh;  // axis -> ranks; empty: one axis of data parallelism
  std::vector<ManifestFile> files;  // in rank order
  // By full name; what every rank has of its own ends in "@rank<r>".
  std::map<std::string, TensorFacts> tensors;
  // Other names: the bytes lie under the name of the tensor that it maps to, one of `tensors`.
  std::map<std::string, std::string> aliases;
  std::map<std::string, std::int64_t> blobs;  // bytes
  // By part; a part may have no files.
  std::map<std::string, std::vector<ForeignFile>> foreign;
  std::string producer;
  friend bool operator==(const Manifest&, const Manifest&) = default;

  std::int64_t TotalBytes() const;
  // The name under which the bytes of `name` lie in the shards: another one for an alias only.
  const std::string& Stored(const std::string& name) const;
  // Of a tensor under any of its names; null when there is none.
  const TensorFacts* FactsOf(const std::string& name) const;
  // Every name that a tensor has, aliases included.
  std::map<std::string, TensorFacts> TensorsByName() const;
};

std::string FormatManifest(const Manifest& manifest);

// kDataLoss unless `text` is whole (its seal matches), of a version known here, and consistent.
// `what` names the file in messages.
Result<Manifest> ParseManifest(std::string_view text, const std::string& what);

}  // namespace perdure
