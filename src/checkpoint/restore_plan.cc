#include "checkpoint/restore_plan.h"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <optional>
#include <string_view>

#include "checkpoint/names.h"

namespace perdure {
namespace {

std::string_view KindOf(const Piece& piece) {
  return piece.blob ? "blob" : "tensor";
}

bool Has(const Manifest& manifest, const Piece& piece, const std::string& name) {
  return piece.blob ? manifest.blobs.count(name) != 0 : manifest.FactsOf(name) != nullptr;
}

// What each rank of the saved world had under this name is accounted for.
template <class Named>
void UseOfAllRanks(const Named& saved, const std::string& base, std::set<std::string>& used) {
  const std::string prefix = base + std::string(kRankMark);
  for (auto it = saved.lower_bound(prefix); it != saved.end(); ++it) {
    if (it->first.compare(0, prefix.size(), prefix) != 0) break;
    used.insert(it->first);
  }
}

std::string Refusal(const Manifest& manifest, int world, const Piece& piece,
                    const std::string& base) {
  return fmt::format(
      "{} {}: every rank has its own, {} ranks saved it and {} go on; start with {} ranks, or let "
      "its entry's on_world_change say what becomes of it (WorldChange::kRank0 or kRecompute)",
      KindOf(piece), base, manifest.world, world, manifest.world);
}

// Compares with what the checkpoint has under `name`, and learns a blob's size from it.
void Compare(const Manifest& manifest, const std::string& name, Piece& piece,
             std::vector<std::string>& differences) {
  if (piece.blob) {
    piece.global_shape = piece.shape = {manifest.blobs.at(name)};
    return;
  }
  const TensorFacts& saved = *manifest.FactsOf(name);
  if (saved.dtype != piece.dtype) {
    differences.push_back(fmt::format("tensor {}: dtype {} in the program, {} in the checkpoint",
                                      piece.name, NameOf(piece.dtype), NameOf(saved.dtype)));
  }
  if (saved.shape != piece.global_shape) {
    differences.push_back(fmt::format("tensor {}: shape {} in the program, {} in the checkpoint",
                                      piece.name, ToString(piece.global_shape),
                                      ToString(saved.shape)));
  }
}

}  // namespace

RestorePlan PlanRestore(const Manifest& manifest, int world, LocalState& state) {
  RestorePlan plan;
  const std::size_t count = state.structure.size();
  plan.read.assign(count, false);
  plan.recompute.assign(count, false);
  // By the first piece of each memory: what is read into it, under which names of the checkpoint.
  std::map<std::size_t, std::map<std::string, std::size_t>> stored;
  std::vector<std::size_t> absent;
  for (std::size_t i = 0; i < count; ++i) {
    Piece& piece = state.structure[i];
    std::string name = piece.name;
    const std::optional<std::string> base = PerRankBase(piece.name);
    if (base.has_value() && manifest.world != world) {
      UseOfAllRanks(manifest.tensors, *base, plan.used);
      UseOfAllRanks(manifest.aliases, *base, plan.used);
      UseOfAllRanks(manifest.blobs, *base, plan.used);
      const WorldChange rule = state.entries[i].on_world_change;
      plan.recompute[i] = rule == WorldChange::kRecompute;
      if (plan.recompute[i]) continue;
      if (rule == WorldChange::kError) {
        plan.differences.push_back(Refusal(manifest, world, piece, *base));
        continue;
      }
      name = PerRankName(*base, Rank(0));
    }
    if (!Has(manifest, piece, name)) {
      absent.push_back(i);
      continue;
    }
    Compare(manifest, name, piece, plan.differences);
    plan.used.insert(name);
    auto& of_memory = stored[state.entries[i].same_as.value_or(i)];
    const auto [first, added] = of_memory.try_emplace(manifest.Stored(name), i);
    if (!added) continue;
    if (of_memory.size() > 1) {
      const auto other = first == of_memory.begin() ? std::next(first) : of_memory.begin();
      plan.alike.emplace_back(other->second, i);
    }
    plan.reads.push_back(piece);
    plan.reads.back().name = std::move(name);
    plan.into.push_back(i);
    plan.read[i] = true;
  }
  for (const std::size_t i : absent) {
    const Piece& piece = state.structure[i];
    if (stored.count(state.entries[i].same_as.value_or(i)) != 0) continue;
    plan.differences.push_back(
        piece.blob ? fmt::format("blob {}: in the program, not in the checkpoint", piece.name)
                   : fmt::format("tensor {}: in the program ({} {}), not in the checkpoint",
                                 piece.name, NameOf(piece.dtype), ToString(piece.global_shape)));
  }
  return plan;
}

}  // namespace perdure
