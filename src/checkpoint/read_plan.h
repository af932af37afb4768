// Who reads which bytes of which file, whatever the layout was when it was saved. Pure.
//
// A rank asks for pieces; the headers of a checkpoint's files are shown to the planner one after
// the other, until nothing is missing, so a rank opens no more of them than it needs. Each header
// gives the reads in that file: for every saved piece that has elements which are still missing,
// the boxes to be moved and the hash chunks that hold them. What several saved pieces cover is
// read from the first one that is shown; which one that is does not matter, because a save is
// committed only after those pieces were found to agree (layout.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard.h"
#include "perdure/status.h"

namespace perdure {

// From one saved piece into one wanted piece.
struct PieceRead {
  std::size_t piece = 0;   // in the shard's index
  std::size_t wanted = 0;  // in the structure that was asked for
  std::vector<Box> boxes;  // in the global tensor; disjoint, none empty
  friend bool operator==(const PieceRead&, const PieceRead&) = default;
};

class ReadPlanner {
 public:
  // `wanted` outlives this. The same name may be asked for more than once.
  explicit ReadPlanner(const Structure& wanted);

  // The reads in the next file, in the order of its data. kDataLoss: what the file says of a tensor
  // is not what was asked for. `what` names the file.
  Result<std::vector<PieceRead>> Next(const ShardIndex& shard, const std::string& what);

  // Every element has a file to come from.
  bool complete() const { return elements_missing_ == 0; }
  // kDataLoss that names the tensors of which elements are missing; OK when complete.
  Status Missing(const std::string& what) const;

 private:
  const Structure& wanted_;
  std::unordered_multimap<std::string_view, std::size_t> by_name_;
  std::vector<std::vector<Box>> missing_;  // of each wanted piece; disjoint
  std::int64_t elements_missing_ = 0;
};

// All moves of a read, in the order of the source's bytes.
Result<std::vector<ByteRun>> RunsOf(const PieceRead& read, const ShardPiece& piece,
                                    const Piece& wanted);

// Where `rank` of `world` would lie among the saved ranks if they held the state in the order of
// their numbers: the likeliest file to begin with.
Rank NearestSavedRank(Rank rank, int world, int saved_world);

// The order in which files are looked at, as indices into the manifest's: those of the ranks of
// which something of their own is wanted, which nobody else can have written; then from `near` on,
// all around.
std::vector<std::size_t> FileOrder(const Manifest& manifest, Rank near, const Structure& wanted);

}  // namespace perdure
