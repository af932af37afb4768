#include "checkpoint/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "checkpoint/json.h"
#include "checkpoint/names.h"

namespace perdure {
namespace {

constexpr std::size_t kNameBytesMax = 1024;

Status CheckName(const std::string& name, std::string_view kind) {
  const auto bad = [&](std::string_view why) {
    return Status(Code::kInvalidArgument, fmt::format("{} name \"{}\" {}", kind, name, why));
  };
  if (name.empty()) return bad("is empty");
  if (name.size() > kNameBytesMax) return bad("is longer than 1024 bytes");
  if (name.find(kRankMark) != std::string::npos) return bad("contains \"@rank\"");
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20) return bad("contains a control character");
  }
  if (!IsUtf8(name)) return bad("is not UTF-8");
  return Ok();
}

Status CheckTensor(const TensorEntry& entry) {
  PERDURE_RETURN_IF_ERROR(CheckName(entry.name, "tensor"));
  PERDURE_RETURN_IF_ERROR(ByteCount(entry.view.dtype, entry.view.shape).status());
  const auto bad = [](std::string why) { return Status(Code::kInvalidArgument, std::move(why)); };
  if (entry.global_shape.empty() && entry.offset.empty()) return Ok();
  if (entry.holders != Holders::kSharded) {
    if (entry.global_shape == entry.view.shape &&
        entry.offset == Shape(entry.view.shape.size(), 0)) {
      return Ok();
    }
    return bad("has a global shape of its own, so its holders must be kSharded");
  }
  if (entry.global_shape.size() != entry.view.shape.size() ||
      entry.offset.size() != entry.view.shape.size()) {
    return bad("shape, global shape and offset differ in their number of extents");
  }
  PERDURE_RETURN_IF_ERROR(ByteCount(entry.view.dtype, entry.global_shape).status());
  for (std::size_t i = 0; i < entry.offset.size(); ++i) {
    if (entry.offset[i] < 0 || entry.view.shape[i] > entry.global_shape[i] ||
        entry.offset[i] > entry.global_shape[i] - entry.view.shape[i]) {
      return bad(fmt::format("piece {} at {} reaches beyond the global shape {}",
                             ToString(entry.view.shape), ToString(entry.offset),
                             ToString(entry.global_shape)));
    }
  }
  return Ok();
}

// The entry's own name when `full` belongs to this part and, if it is per rank, to this rank.
std::optional<std::string> EntryOf(const std::string& full, const std::string& part, Rank rank) {
  if (full.size() <= part.size() + 1 || full.compare(0, part.size(), part) != 0 ||
      full[part.size()] != '.') {
    return std::nullopt;
  }
  std::string entry = full.substr(part.size() + 1);
  const std::size_t mark = entry.rfind(kRankMark);
  if (mark == std::string::npos) return entry;
  std::string bare = entry.substr(0, mark);
  if (PerRankName(bare, rank) != entry) return std::nullopt;
  return bare;
}

}  // namespace

void Parts::Add(std::string name, std::unique_ptr<Stateful> part) {
  Stateful* const stateful = part.get();
  AddPart({std::move(name), std::move(part), stateful});
}

void Parts::Add(std::string name, Stateful& part) {
  AddPart({std::move(name), nullptr, &part});
}

Status Parts::CheckPartName(const std::string& name) const {
  PERDURE_RETURN_IF_ERROR(CheckName(name, "part"));
  if (name.find('.') != std::string::npos) {
    return Status(Code::kInvalidArgument,
                  fmt::format("part name \"{}\" contains a dot, which ends a part's name in a "
                              "checkpoint",
                              name));
  }
  const auto taken = [&](const auto& other) { return other.name == name; };
  if (std::any_of(parts_.begin(), parts_.end(), taken) ||
      std::any_of(foreign_.begin(), foreign_.end(), taken)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("part \"{}\" was added to the checkpoint twice", name));
  }
  return Ok();
}

void Parts::AddPart(Part part) {
  Status bad = CheckPartName(part.name);
  if (bad.ok() && part.stateful == nullptr) {
    bad = Status(Code::kInvalidArgument, fmt::format("part \"{}\" is null", part.name));
  }
  if (bad.ok()) {
    parts_.push_back(std::move(part));
  } else if (failed_.ok()) {
    failed_ = bad;
  }
}

void Parts::AddForeign(ForeignPart part) {
  Status bad = CheckPartName(part.name);
  if (bad.ok() && !IsForeignPartName(part.name)) {
    bad = Status(Code::kInvalidArgument,
                 fmt::format("part name \"{}\" cannot be a directory's", part.name));
  }
  if (bad.ok() && (!part.write || !part.read)) {
    bad = Status(Code::kInvalidArgument,
                 fmt::format("part \"{}\" cannot both write and read", part.name));
  }
  if (bad.ok()) {
    foreign_.push_back(std::move(part));
  } else if (failed_.ok()) {
    failed_ = bad;
  }
}

// Tied weights are two names for one piece of memory. What is seen in another way (a transposed
// view), or changes at another time, is a tensor of its own.
void Parts::FindAliases(LocalState& local) {
  using Where = std::tuple<const void*, DeviceKind, int, DType, bool, Changes, Holders>;
  std::map<std::pair<Where, std::array<Shape, 4>>, std::size_t> first;
  for (std::size_t i = 0; i < local.structure.size(); ++i) {
    Piece& piece = local.structure[i];
    LocalEntry& entry = local.entries[i];
    if (piece.blob || VolumeOf({piece.offset, piece.shape}) == 0) continue;
    const Where where{entry.view.data, entry.view.device, entry.view.device_index,
                      piece.dtype,     entry.owned,       entry.changes,
                      entry.holders};
    const auto [found, added] = first.try_emplace(
        {where, {piece.shape, entry.view.strides, piece.global_shape, piece.offset}}, i);
    if (added) continue;
    entry.same_as = found->second;
    piece.alias_of = local.structure[found->second].name;
  }
}

std::string Parts::FullName(const Part& part, const std::string& entry, Holders holders) const {
  std::string full = fmt::format("{}.{}", part.name, entry);
  return holders == Holders::kPerRank ? PerRankName(full, rank_) : full;
}

Result<LocalState> Parts::Describe() {
  PERDURE_RETURN_IF_ERROR(failed_);
  LocalState local;
  std::set<std::string> names;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const Part& part = parts_[p];
    Result<State> described = part.stateful->Describe();
    PERDURE_RETURN_IF_ERROR(described.status().WithContext(part.name));
    for (TensorEntry& entry : described->tensors) {
      const std::string full = FullName(part, entry.name, entry.holders);
      PERDURE_RETURN_IF_ERROR(CheckTensor(entry).WithContext(full));
      if (!names.insert(full).second) {
        return Status(Code::kInvalidArgument, fmt::format("{} occurs twice in the state", full));
      }
      Piece piece;
      piece.name = full;
      piece.dtype = entry.view.dtype;
      piece.shape = entry.view.shape;
      const bool whole = entry.global_shape.empty() && entry.offset.empty();
      piece.global_shape = whole ? piece.shape : std::move(entry.global_shape);
      piece.offset = whole ? perdure::Shape(piece.shape.size(), 0) : std::move(entry.offset);
      local.structure.push_back(std::move(piece));
      local.entries.push_back({p,
                               std::move(entry.name),
                               std::move(entry.view),
                               {},
                               entry.holders,
                               entry.changes,
                               entry.on_world_change,
                               part.owned != nullptr});
    }
    for (BlobEntry& entry : described->blobs) {
      const std::string full = FullName(part, entry.name, entry.holders);
      PERDURE_RETURN_IF_ERROR(CheckName(entry.name, "blob").WithContext(full));
      if (entry.holders == Holders::kSharded) {
        return Status(Code::kInvalidArgument, fmt::format("{}: a blob cannot be sharded", full));
      }
      if (!names.insert(full).second) {
        return Status(Code::kInvalidArgument, fmt::format("{} occurs twice in the state", full));
      }
      const auto bytes = static_cast<std::int64_t>(entry.bytes.size());
      local.structure.push_back({full, true, DType::kU8, {bytes}, {0}, {bytes}});
      local.entries.push_back({p,
                               std::move(entry.name),
                               {},
                               std::move(entry.bytes),
                               entry.holders,
                               Changes::kAtAnyTime,
                               entry.on_world_change});
    }
  }
  FindAliases(local);
  return local;
}

Status Parts::PrepareRestore(const Manifest& manifest) {
  PERDURE_RETURN_IF_ERROR(failed_);
  const Rank like = manifest.world == world_ ? rank_ : Rank(0);
  for (const Part& part : parts_) {
    SavedState saved;
    for (const auto& [full, facts] : manifest.tensors) {
      const std::optional<std::string> entry = EntryOf(full, part.name, like);
      if (entry.has_value()) saved.tensors.push_back({*entry, facts.dtype, facts.shape});
    }
    for (const auto& [full, stored] : manifest.aliases) {
      const std::optional<std::string> entry = EntryOf(full, part.name, like);
      const TensorFacts& facts = manifest.tensors.at(stored);
      if (entry.has_value()) saved.tensors.push_back({*entry, facts.dtype, facts.shape});
    }
    for (const auto& [full, bytes] : manifest.blobs) {
      const std::optional<std::string> entry = EntryOf(full, part.name, like);
      if (entry.has_value()) saved.blobs.push_back(*entry);
    }
    PERDURE_RETURN_IF_ERROR(part.stateful->PrepareRestore(saved).WithContext(part.name));
  }
  return Ok();
}

Status Parts::FinishRestore(
    const LocalState& state, const std::vector<bool>& recompute, int saved_world,
    const std::function<std::span<const std::byte>(std::size_t)>& bytes_of) {
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    Stateful& part = *parts_[p].stateful;
    std::vector<BlobEntry> blobs;
    std::vector<std::string> anew;
    for (std::size_t i = 0; i < state.structure.size(); ++i) {
      const LocalEntry& entry = state.entries[i];
      if (entry.part != p) continue;
      if (recompute[i]) anew.push_back(entry.name);
      if (recompute[i] || !state.structure[i].blob) continue;
      const std::span<const std::byte> bytes = bytes_of(i);
      BlobEntry blob;
      blob.name = entry.name;
      blob.bytes.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      blob.holders = entry.holders;
      blob.on_world_change = entry.on_world_change;
      blobs.push_back(std::move(blob));
    }
    PERDURE_RETURN_IF_ERROR(part.FinishRestore(blobs).WithContext(parts_[p].name));
    if (saved_world == world_) continue;
    PERDURE_RETURN_IF_ERROR(
        part.WorldChanged(saved_world, world_, anew).WithContext(parts_[p].name));
  }
  return Ok();
}

}  // namespace perdure
