#include "checkpoint/read_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "checkpoint/damage.h"
#include "checkpoint/names.h"

namespace perdure {
namespace {

// Tensors named in one message; the rest is counted.
constexpr int kMissingNamedMax = 10;

}  // namespace

ReadPlanner::ReadPlanner(const Structure& wanted) : wanted_(wanted), missing_(wanted.size()) {
  by_name_.reserve(wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    by_name_.emplace(wanted[i].name, i);
    const Box all{wanted[i].offset, wanted[i].shape};
    if (VolumeOf(all) == 0) continue;
    missing_[i].push_back(all);
    elements_missing_ += VolumeOf(all);
  }
}

Result<std::vector<PieceRead>> ReadPlanner::Next(const ShardIndex& shard, const std::string& what) {
  std::vector<PieceRead> reads;
  for (std::size_t p = 0; p < shard.pieces.size(); ++p) {
    const ShardPiece& piece = shard.pieces[p];
    const auto [begin, end] = by_name_.equal_range(piece.name);
    for (auto it = begin; it != end; ++it) {
      const std::size_t i = it->second;
      const Piece& want = wanted_[i];
      if (piece.dtype != want.dtype || piece.blob != want.blob ||
          piece.global_shape != want.global_shape) {
        return Damaged(what, fmt::format("tensor {} is not what the manifest says", piece.name));
      }
      const Box saved{piece.offset, piece.shape};
      PieceRead read{p, i, {}};
      std::vector<Box> left;
      for (const Box& open : missing_[i]) {
        Box common = Intersect(open, saved);
        const std::int64_t elements = VolumeOf(common);
        if (elements == 0) {
          left.push_back(open);
          continue;
        }
        for (Box& rest : Without(open, common)) left.push_back(std::move(rest));
        elements_missing_ -= elements;
        read.boxes.push_back(std::move(common));
      }
      if (read.boxes.empty()) continue;
      missing_[i] = std::move(left);
      reads.push_back(std::move(read));
    }
  }
  return reads;
}

Status ReadPlanner::Missing(const std::string& what) const {
  if (complete()) return Ok();
  std::string text;
  int named = 0;
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    std::int64_t elements = 0;
    for (const Box& box : missing_[i]) elements += VolumeOf(box);
    if (elements == 0 || ++named > kMissingNamedMax) continue;
    text += fmt::format("{}{} {}: {} of its elements are in none of its files",
                        text.empty() ? "" : "; ", wanted_[i].blob ? "blob" : "tensor",
                        wanted_[i].name, elements);
  }
  if (named > kMissingNamedMax) text += fmt::format("; and {} more", named - kMissingNamedMax);
  return Damaged(what, text);
}

Result<std::vector<ByteRun>> RunsOf(const PieceRead& read, const ShardPiece& piece,
                                    const Piece& wanted) {
  std::vector<ByteRun> runs;
  for (const Box& box : read.boxes) {
    PERDURE_ASSIGN_OR_RETURN(
        std::vector<ByteRun> of_box,
        RunsOf(piece.dtype, {piece.offset, piece.shape}, {wanted.offset, wanted.shape}, box));
    if (runs.empty()) {
      runs = std::move(of_box);
    } else {
      runs.insert(runs.end(), of_box.begin(), of_box.end());
    }
  }
  if (read.boxes.size() > 1) {
    std::sort(runs.begin(), runs.end(),
              [](const ByteRun& a, const ByteRun& b) { return a.source < b.source; });
  }
  return runs;
}

Rank NearestSavedRank(Rank rank, int world, int saved_world) {
  const std::int64_t of = std::max(world, 1);
  return Rank(rank.value() * saved_world / of);
}

std::vector<std::size_t> FileOrder(const Manifest& manifest, Rank near, const Structure& wanted) {
  std::set<Rank> owners;
  for (const Piece& piece : wanted) {
    if (const std::optional<Rank> owner = OwnerOf(piece.name)) owners.insert(*owner);
  }
  const std::size_t count = manifest.files.size();
  std::vector<std::size_t> order;
  std::vector<bool> taken(count, false);
  std::size_t first = count;
  for (std::size_t i = 0; i < count; ++i) {
    const std::optional<ShardFileName> name = ParseShardName(manifest.files[i].name);
    if (!name.has_value()) continue;
    if (name->rank == near) first = std::min(first, i);
    taken[i] = owners.count(name->rank) != 0;
    if (taken[i]) order.push_back(i);
  }
  if (first == count) first = 0;
  for (std::size_t n = 0; n < count; ++n) {
    const std::size_t i = (first + n) % count;
    if (!taken[i]) order.push_back(i);
  }
  return order;
}

}  // namespace perdure
