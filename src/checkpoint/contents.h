// Which pieces of which tensor lie in which file of a checkpoint, from the headers of all its
// shards. For tools that look at a checkpoint as a whole; a rank that restores needs far less
// (reader.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/shard.h"
#include "perdure/status.h"
#include "storage/files.h"

namespace perdure {

// How far long work has come: bytes done of `total`. Called often, from the thread that works.
using WorkProgress = std::function<void(std::int64_t done, std::int64_t total)>;

class Contents {
 public:
  struct Place {
    std::size_t file = 0;  // in the manifest's list
    ShardPiece piece;
  };

  // Reads and checks every header. Reads no data.
  static Result<Contents> Load(Files& files, const std::string& directory, Manifest manifest);

  const Manifest& manifest() const { return manifest_; }
  const std::string& directory() const { return directory_; }
  // The pieces of a tensor or blob, in the order of their offsets; none for an unknown name.
  const std::vector<Place>& PiecesOf(const std::string& name) const;

  // One chunk, verified. Keeps the file of the last one open.
  Status ReadChunk(const Place& place, std::size_t chunk, std::span<std::byte> bytes);

 private:
  Contents(Files& files, std::string directory, Manifest manifest)
      : files_(&files), directory_(std::move(directory)), manifest_(std::move(manifest)) {}

  Files* files_;
  std::string directory_;
  Manifest manifest_;
  std::map<std::string, std::vector<Place>> pieces_;
  std::vector<Place> none_;
  std::size_t open_file_ = 0;
  std::unique_ptr<ShardReader> open_;
};

}  // namespace perdure
