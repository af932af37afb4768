#include "checkpoint/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "checkpoint/damage.h"
#include "checkpoint/json.h"

namespace perdure {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kReasonsMax = 20;

bool Overlap(const Box& a, const Box& b) {
  return VolumeOf(Intersect(a, b)) > 0;
}

bool Inside(const Box& box, const Box& outer) {
  if (box.offset.size() != outer.offset.size() || box.shape.size() != outer.shape.size()) {
    return false;
  }
  for (std::size_t i = 0; i < box.shape.size(); ++i) {
    if (box.shape[i] < 0 || box.offset[i] < outer.offset[i] ||
        box.offset[i] + box.shape[i] > outer.offset[i] + outer.shape[i]) {
      return false;
    }
  }
  return true;
}

// The extent along which the boxes begin at the most places: the one that separates them best.
std::size_t BestAxis(const std::vector<Box>& boxes) {
  std::size_t axis = 0;
  std::size_t most = 0;
  for (std::size_t i = 0; i < boxes[0].shape.size(); ++i) {
    std::set<std::int64_t> begins;
    for (const Box& box : boxes) begins.insert(box.offset[i]);
    if (begins.size() <= most) continue;
    most = begins.size();
    axis = i;
  }
  return axis;
}

// Pairs of boxes that have elements in common, found by a sweep along one extent. None is empty.
std::vector<std::pair<std::size_t, std::size_t>> Overlaps(const std::vector<Box>& boxes) {
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  if (boxes.size() < 2 || boxes[0].shape.empty()) return pairs;
  const std::size_t axis = BestAxis(boxes);
  std::vector<std::size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return boxes[a].offset[axis] < boxes[b].offset[axis];
  });
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Box& box = boxes[order[i]];
    const std::int64_t end = box.offset[axis] + box.shape[axis];
    for (std::size_t j = i + 1; j < order.size() && boxes[order[j]].offset[axis] < end; ++j) {
      if (Overlap(box, boxes[order[j]])) pairs.push_back(std::minmax(order[i], order[j]));
    }
  }
  std::sort(pairs.begin(), pairs.end());
  return pairs;
}

// Copies of one box, and who has them.
struct Group {
  const Piece* piece = nullptr;
  std::vector<std::pair<int, std::size_t>> holders;  // (rank, index in its structure)
  std::int64_t bytes = 0;
};

struct Named {
  const Piece* first = nullptr;
  int first_rank = 0;
  bool alias = true;                                // on every rank, of the same name
  std::map<std::pair<Shape, Shape>, Group> groups;  // by (offset, shape)
};

class Reasons {
 public:
  void Add(std::string reason) {
    if (++count_ <= kReasonsMax) {
      text_ += fmt::format("{}{}", text_.empty() ? "" : "; ", reason);
    }
  }
  Status ToStatus() const {
    if (count_ == 0) return Ok();
    if (count_ <= kReasonsMax) return Status(Code::kInvalidArgument, text_);
    return Status(Code::kInvalidArgument,
                  fmt::format("{}; and {} more", text_, count_ - kReasonsMax));
  }

 private:
  std::size_t count_ = 0;
  std::string text_;
};

// Sets of ranks that hold the same things, and what each of them compares.
class Sharing {
 public:
  explicit Sharing(WritePlan& plan) : plan_(plan) {}

  void Add(const std::vector<std::pair<int, std::size_t>>& holders,
           const std::optional<Box>& part) {
    std::vector<int> ranks;
    for (const auto& [rank, index] : holders) ranks.push_back(rank);
    const auto [found, added] = sets_.try_emplace(ranks, static_cast<int>(plan_.holders.size()));
    if (added) plan_.holders.push_back(ranks);
    const int set = found->second;
    for (const auto& [rank, index] : holders) {
      std::vector<SharedPieces>& shared = plan_.ranks[static_cast<std::size_t>(rank)].shared;
      auto mine = std::find_if(shared.begin(), shared.end(),
                               [&](const SharedPieces& pieces) { return pieces.holders == set; });
      if (mine == shared.end()) mine = shared.insert(shared.end(), {set, {}});
      mine->pieces.push_back({index, part});
    }
  }

 private:
  WritePlan& plan_;
  std::map<std::vector<int>, int> sets_;
};

// All elements are held by somebody; those of overlapping boxes are to be compared. Copies of one
// box are compared with each other already, so one holder of each is enough.
void CheckCoverage(const std::string& name, const Named& named, Sharing& sharing,
                   Reasons& reasons) {
  std::vector<Box> boxes;
  std::vector<const Group*> groups;
  std::int64_t elements = 0;
  for (const auto& [key, group] : named.groups) {
    const Box box{key.first, key.second};
    if (VolumeOf(box) == 0) continue;
    elements += VolumeOf(box);
    boxes.push_back(box);
    groups.push_back(&group);
  }
  const Shape& global = named.first->global_shape;
  const auto overlaps = Overlaps(boxes);
  for (const auto& [a, b] : overlaps) {
    std::vector<std::pair<int, std::size_t>> two = {groups[a]->holders[0], groups[b]->holders[0]};
    std::sort(two.begin(), two.end());
    sharing.Add(two, Intersect(boxes[a], boxes[b]));
  }
  if (!overlaps.empty()) {
    Coverage coverage(global);
    for (const Box& box : boxes) coverage.Add(box);
    elements = coverage.elements();
  }
  const std::int64_t whole = VolumeOf({Shape(global.size(), 0), global});
  if (elements != whole) {
    reasons.Add(fmt::format("{} {}: the ranks together hold {} of {} elements", name,
                            ToString(global), elements, whole));
  }
}

// Splits a group's piece into rows, evenly over its holders.
void SplitOver(const Group& group, std::vector<RankPlan>& plans, std::vector<std::int64_t>& load) {
  const std::int64_t rows = group.piece->shape[0];
  const auto count = static_cast<std::int64_t>(group.holders.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = rows / count * i + std::min(i, rows % count);
    const std::int64_t end = begin + rows / count + (i < rows % count ? 1 : 0);
    if (begin == end) continue;
    const auto& [rank, index] = group.holders[static_cast<std::size_t>(i)];
    plans[static_cast<std::size_t>(rank)].items.push_back({index, begin, end, false});
    load[static_cast<std::size_t>(rank)] += group.bytes / rows * (end - begin);
  }
}

bool CanSplit(const Group& group, std::int64_t split_bytes) {
  const Piece& piece = *group.piece;
  return group.holders.size() > 1 && !piece.blob && !piece.shape.empty() && piece.shape[0] > 1 &&
         group.bytes > split_bytes && group.bytes % piece.shape[0] == 0;
}

void ShareOut(const std::vector<const Group*>& groups, std::int64_t split_bytes,
              std::vector<RankPlan>& plans) {
  std::vector<std::int64_t> load(plans.size(), 0);
  std::vector<const Group*> single;
  for (const Group* const group : groups) {
    if (CanSplit(*group, split_bytes)) {
      SplitOver(*group, plans, load);
    } else {
      single.push_back(group);
    }
  }
  // What only one rank has comes first, then the largest: the small ones even it out.
  std::stable_sort(single.begin(), single.end(), [](const Group* a, const Group* b) {
    const bool a_sole = a->holders.size() == 1;
    const bool b_sole = b->holders.size() == 1;
    return a_sole != b_sole ? a_sole : a->bytes > b->bytes;
  });
  for (const Group* const group : single) {
    const auto& [rank, index] = *std::min_element(
        group->holders.begin(), group->holders.end(), [&](const auto& a, const auto& b) {
          return load[static_cast<std::size_t>(a.first)] < load[static_cast<std::size_t>(b.first)];
        });
    plans[static_cast<std::size_t>(rank)].items.push_back({index, 0, 0, true});
    load[static_cast<std::size_t>(rank)] += group->bytes;
  }
}

}  // namespace

std::string FormatStructure(const Structure& structure) {
  std::string text = "[";
  const char* separator = "";
  for (const Piece& piece : structure) {
    const std::string alias =
        piece.alias_of.empty() ? std::string() : fmt::format(",{}", QuoteJson(piece.alias_of));
    text += fmt::format("{}[{},{},\"{}\",{},{},{}{}]", separator, QuoteJson(piece.name),
                        piece.blob ? 1 : 0, NameOf(piece.dtype), FormatShape(piece.global_shape),
                        FormatShape(piece.offset), FormatShape(piece.shape), alias);
    separator = ",\n";
  }
  return text + "]";
}

Result<Structure> ParseStructure(std::string_view text, const std::string& what) {
  PERDURE_ASSIGN_OR_RETURN(const Json json, ParseJson(text, what));
  if (!json.is_array()) return Damaged(what, "not a list of pieces");
  Structure structure;
  try {
    for (const Json& item : json) {
      Piece piece;
      piece.name = item.at(0).get<std::string>();
      piece.blob = item.at(1).get<int>() != 0;
      PERDURE_ASSIGN_OR_RETURN(piece.dtype, DTypeFromName(item.at(2).get<std::string>()));
      piece.global_shape = item.at(3).get<Shape>();
      piece.offset = item.at(4).get<Shape>();
      piece.shape = item.at(5).get<Shape>();
      if (item.size() > 6) piece.alias_of = item.at(6).get<std::string>();
      structure.push_back(std::move(piece));
    }
  } catch (const Json::exception& error) {
    return Damaged(what, error.what());
  }
  return structure;
}

Result<WritePlan> PlanWrite(const std::vector<Structure>& ranks, std::int64_t split_bytes) {
  WritePlan plan;
  plan.ranks.resize(ranks.size());
  Reasons reasons;
  std::map<std::string, Named> by_name;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (std::size_t index = 0; index < ranks[rank].size(); ++index) {
      const Piece& piece = ranks[rank][index];
      Named& named = by_name[piece.name];
      if (named.first == nullptr) {
        named.first = &piece;
        named.first_rank = static_cast<int>(rank);
      } else if (named.first->dtype != piece.dtype || named.first->blob != piece.blob ||
                 named.first->global_shape != piece.global_shape) {
        reasons.Add(fmt::format("{} is {} {} on rank {} and {} {} on rank {}", piece.name,
                                NameOf(named.first->dtype), ToString(named.first->global_shape),
                                named.first_rank, NameOf(piece.dtype), ToString(piece.global_shape),
                                rank));
        continue;
      }
      named.alias =
          named.alias && !piece.alias_of.empty() && piece.alias_of == named.first->alias_of;
      Group& group = named.groups[{piece.offset, piece.shape}];
      group.piece = &piece;
      group.holders.emplace_back(static_cast<int>(rank), index);
      PERDURE_ASSIGN_OR_RETURN(group.bytes, ByteCount(piece.dtype, piece.shape));
    }
  }
  PERDURE_RETURN_IF_ERROR(reasons.ToStatus());

  std::vector<const Group*> groups;
  Sharing sharing(plan);
  for (const auto& [name, named] : by_name) {
    const Piece& first = *named.first;
    if (named.alias) {
      // Whoever holds it holds the other name's piece, which is looked at under that name.
      plan.aliases[name] = first.alias_of;
      continue;
    }
    CheckCoverage(name, named, sharing, reasons);
    if (first.blob) {
      plan.blobs[name] = first.shape[0];
    } else {
      plan.tensors[name] = {first.dtype, first.global_shape};
    }
    bool wrote_empty = false;
    for (const auto& [key, group] : named.groups) {
      if (group.bytes == 0) {
        // An empty tensor is written once, so that its name is there; the empty piece of another
        // one not at all.
        const bool empty_tensor = VolumeOf({first.offset, first.global_shape}) == 0;
        if (!empty_tensor || wrote_empty) continue;
        wrote_empty = true;
        groups.push_back(&group);
        continue;
      }
      groups.push_back(&group);
      if (group.holders.size() > 1) sharing.Add(group.holders, std::nullopt);
    }
  }
  PERDURE_RETURN_IF_ERROR(reasons.ToStatus());
  ShareOut(groups, split_bytes, plan.ranks);
  return plan;
}

std::string FormatRankPlan(const RankPlan& plan) {
  std::string text = "{\"items\":[";
  const char* separator = "";
  for (const WriteItem& item : plan.items) {
    text += item.whole
                ? fmt::format("{}[{}]", separator, item.piece)
                : fmt::format("{}[{},{},{}]", separator, item.piece, item.row_begin, item.row_end);
    separator = ",";
  }
  text += "],\"shared\":[";
  separator = "";
  for (const SharedPieces& shared : plan.shared) {
    text += fmt::format("{}[{}", separator, shared.holders);
    for (const SharedPiece& piece : shared.pieces) {
      text += piece.part.has_value()
                  ? fmt::format(",[{},{},{}]", piece.piece, FormatShape(piece.part->offset),
                                FormatShape(piece.part->shape))
                  : fmt::format(",{}", piece.piece);
    }
    text += "]";
    separator = ",";
  }
  return text + "]}";
}

Result<RankPlan> ParseRankPlan(std::string_view text, const Structure& structure,
                               const std::string& what) {
  PERDURE_ASSIGN_OR_RETURN(const Json json, ParseJson(text, what));
  RankPlan plan;
  try {
    for (const Json& item : json.at("items")) {
      WriteItem write;
      write.piece = item.at(0).get<std::size_t>();
      write.whole = item.size() == 1;
      if (write.piece >= structure.size()) return Damaged(what, "names a piece that is not there");
      if (!write.whole) {
        write.row_begin = item.at(1).get<std::int64_t>();
        write.row_end = item.at(2).get<std::int64_t>();
        const Shape& shape = structure[write.piece].shape;
        if (shape.empty() || write.row_begin < 0 || write.row_end < write.row_begin ||
            write.row_end > shape[0]) {
          return Damaged(what, "names rows that are not there");
        }
      }
      plan.items.push_back(write);
    }
    for (const Json& item : json.at("shared")) {
      SharedPieces shared;
      shared.holders = item.at(0).get<int>();
      for (std::size_t i = 1; i < item.size(); ++i) {
        SharedPiece piece;
        const bool whole = !item[i].is_array();
        piece.piece = (whole ? item[i] : item[i].at(0)).get<std::size_t>();
        if (piece.piece >= structure.size()) {
          return Damaged(what, "names a piece that is not there");
        }
        if (!whole) {
          piece.part = Box{item[i].at(1).get<Shape>(), item[i].at(2).get<Shape>()};
          const Piece& of = structure[piece.piece];
          if (!Inside(*piece.part, {of.offset, of.shape})) {
            return Damaged(what, "names a part of a piece that is not there");
          }
        }
        shared.pieces.push_back(std::move(piece));
      }
      plan.shared.push_back(std::move(shared));
    }
  } catch (const Json::exception& error) {
    return Damaged(what, error.what());
  }
  return plan;
}

std::int64_t VolumeOf(const Box& box) {
  std::int64_t volume = 1;
  for (const std::int64_t extent : box.shape) volume *= extent;
  return volume;
}

Box Intersect(const Box& a, const Box& b) {
  Box common;
  for (std::size_t i = 0; i < a.shape.size(); ++i) {
    const std::int64_t begin = std::max(a.offset[i], b.offset[i]);
    const std::int64_t end = std::min(a.offset[i] + a.shape[i], b.offset[i] + b.shape[i]);
    common.offset.push_back(begin);
    common.shape.push_back(std::max<std::int64_t>(0, end - begin));
  }
  return common;
}

std::vector<Box> Without(const Box& box, const Box& hole) {
  std::vector<Box> rest;
  Box left = box;
  // Slabs before and behind the hole along one extent, then along the next within what is left.
  for (std::size_t i = 0; i < box.shape.size(); ++i) {
    const std::int64_t end = left.offset[i] + left.shape[i];
    const std::int64_t hole_end = hole.offset[i] + hole.shape[i];
    if (hole.offset[i] > left.offset[i]) {
      rest.push_back(left);
      rest.back().shape[i] = hole.offset[i] - left.offset[i];
    }
    if (hole_end < end) {
      rest.push_back(left);
      rest.back().offset[i] = hole_end;
      rest.back().shape[i] = end - hole_end;
    }
    left.offset[i] = hole.offset[i];
    left.shape[i] = hole.shape[i];
  }
  return rest;
}

Coverage::Coverage(const Shape& global) {
  const Box all{Shape(global.size(), 0), global};
  whole_ = missing_elements_ = VolumeOf(all);
  if (whole_ > 0) missing_.push_back(all);
}

void Coverage::Add(const Box& box) {
  std::vector<Box> left;
  for (const Box& open : missing_) {
    const Box common = Intersect(open, box);
    const std::int64_t elements = VolumeOf(common);
    if (elements == 0) {
      left.push_back(open);
      continue;
    }
    missing_elements_ -= elements;
    for (Box& rest : Without(open, common)) left.push_back(std::move(rest));
  }
  missing_ = std::move(left);
}

Result<std::vector<ByteRun>> RunsOf(DType dtype, const Box& source, const Box& target,
                                    const Box& part) {
  std::vector<ByteRun> runs;
  if (VolumeOf(part) == 0) return runs;
  const std::size_t extents = part.shape.size();
  // Trailing extents that the part covers wholly in both memories run on without a gap.
  std::size_t inner = extents;
  std::int64_t run_elements = 1;
  while (inner > 0) {
    --inner;
    run_elements *= part.shape[inner];
    if (part.shape[inner] != source.shape[inner] || part.shape[inner] != target.shape[inner]) break;
  }
  std::vector<std::int64_t> source_stride(extents, 1);
  std::vector<std::int64_t> target_stride(extents, 1);
  for (std::size_t i = extents; i-- > 1;) {
    source_stride[i - 1] = source_stride[i] * source.shape[i];
    target_stride[i - 1] = target_stride[i] * target.shape[i];
  }
  std::int64_t source_first = 0;
  std::int64_t target_first = 0;
  for (std::size_t i = 0; i < extents; ++i) {
    source_first += (part.offset[i] - source.offset[i]) * source_stride[i];
    target_first += (part.offset[i] - target.offset[i]) * target_stride[i];
  }
  const std::int64_t bits = BitsOf(dtype);
  Shape at(inner, 0);
  for (;;) {
    std::int64_t source_element = source_first;
    std::int64_t target_element = target_first;
    for (std::size_t i = 0; i < inner; ++i) {
      source_element += at[i] * source_stride[i];
      target_element += at[i] * target_stride[i];
    }
    if (source_element * bits % 8 != 0 || target_element * bits % 8 != 0 ||
        run_elements * bits % 8 != 0) {
      return Status(Code::kUnimplemented,
                    fmt::format("a part of a {} tensor that does not begin and end on whole bytes",
                                NameOf(dtype)));
    }
    runs.push_back({source_element * bits / 8, target_element * bits / 8, run_elements * bits / 8});
    std::size_t axis = inner;
    while (axis > 0 && ++at[axis - 1] == part.shape[axis - 1]) at[--axis] = 0;
    if (axis == 0) break;
  }
  return runs;
}

}  // namespace perdure
