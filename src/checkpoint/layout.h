// Who holds what, who writes what, and which saved bytes make up a wanted piece. Pure.
//
// A piece is a box (offset, shape) of a global tensor. Saving: equal boxes on several ranks are
// copies of each other, written once, the writing shared out; what has two names is written under
// one of them, if all ranks see it so; boxes that overlap without being
// equal are each written whole. What more than one rank holds is believed only after hashes agreed.
// Restoring: a wanted box is put together from whatever saved boxes it intersects (read_plan.h), so
// the layout may have changed in between.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "perdure/status.h"
#include "perdure/tensor.h"

namespace perdure {

// One piece of the state that one rank holds. A blob is U8 with one extent.
struct Piece {
  std::string name;  // full: "model.wte.weight", "rng.state@rank3"
  bool blob = false;
  DType dtype = DType::kF32;
  Shape global_shape;
  Shape offset;
  Shape shape;
  // Another name of this rank's structure for the same memory, seen in the same way: tied weights.
  std::string alias_of = {};
  friend bool operator==(const Piece&, const Piece&) = default;
};

// Everything a rank holds, in the order in which it captures.
using Structure = std::vector<Piece>;

std::string FormatStructure(const Structure& structure);
Result<Structure> ParseStructure(std::string_view text, const std::string& what);

// ---------------------------------------------------------------- writing

// Rows [row_begin, row_end) of a piece, along its first extent; the whole piece when it has none.
struct WriteItem {
  std::size_t piece = 0;  // index in the rank's structure
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  bool whole = true;
  friend bool operator==(const WriteItem&, const WriteItem&) = default;
};

struct Box {
  Shape offset;
  Shape shape;
  friend bool operator==(const Box&, const Box&) = default;
};

// A piece, or a part of one, that other ranks hold too.
struct SharedPiece {
  std::size_t piece = 0;    // index in the rank's structure
  std::optional<Box> part;  // in the global tensor; none: the whole piece
  friend bool operator==(const SharedPiece&, const SharedPiece&) = default;
};

// What the same other ranks hold too: compared by one digest.
struct SharedPieces {
  int holders = 0;  // index into WritePlan::holders
  std::vector<SharedPiece> pieces;
  friend bool operator==(const SharedPieces&, const SharedPieces&) = default;
};

struct RankPlan {
  std::vector<WriteItem> items;
  std::vector<SharedPieces> shared;
  friend bool operator==(const RankPlan&, const RankPlan&) = default;
};

struct WritePlan {
  std::vector<RankPlan> ranks;
  std::vector<std::vector<int>> holders;  // sets of ranks that hold the same pieces
  std::map<std::string, TensorFacts> tensors;
  // What is another tensor's other name on every rank that holds it: not written again.
  std::map<std::string, std::string> aliases;
  std::map<std::string, std::int64_t> blobs;
};

// A copied piece larger than this is split along its first extent over its holders.
inline constexpr std::int64_t kSplitBytes = std::int64_t{4} << 20;

// kInvalidArgument, with every reason in one message: ranks disagree about a tensor's dtype or
// global shape, or the pieces together do not fill the tensor.
Result<WritePlan> PlanWrite(const std::vector<Structure>& ranks, std::int64_t split_bytes);

std::string FormatRankPlan(const RankPlan& plan);
Result<RankPlan> ParseRankPlan(std::string_view text, const Structure& structure,
                               const std::string& what);

// ---------------------------------------------------------------- reading

std::int64_t VolumeOf(const Box& box);
// The common part; zero volume when there is none.
Box Intersect(const Box& a, const Box& b);
// `box` without `hole`, which lies inside it: disjoint boxes, none empty.
std::vector<Box> Without(const Box& box, const Box& hole);

// How much of a tensor the boxes that were added make up together, overlaps counted once.
class Coverage {
 public:
  explicit Coverage(const Shape& global);
  void Add(const Box& box);
  std::int64_t elements() const { return whole_ - missing_elements_; }
  std::int64_t whole() const { return whole_; }

 private:
  std::int64_t whole_ = 0;
  std::int64_t missing_elements_ = 0;
  std::vector<Box> missing_;
};

// A run of bytes that lies in one piece both in the source's and in the target's packed memory.
struct ByteRun {
  std::int64_t source = 0;
  std::int64_t target = 0;
  std::int64_t bytes = 0;
  friend bool operator==(const ByteRun&, const ByteRun&) = default;
};

// How `part` (inside both) moves from `source` to `target`, as runs in the order of the source's
// bytes, as long as they can be made. kUnimplemented for elements below a byte whose runs do not
// end on bytes.
Result<std::vector<ByteRun>> RunsOf(DType dtype, const Box& source, const Box& target,
                                    const Box& part);

}  // namespace perdure
