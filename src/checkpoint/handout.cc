#include "checkpoint/handout.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "checkpoint/names.h"

namespace perdure {
namespace {

// Whose a name or file is; nothing for what belongs to all.
std::optional<std::size_t> OwnerIn(std::optional<Rank> rank, int world) {
  if (!rank.has_value() || rank->value() >= world) return std::nullopt;
  return static_cast<std::size_t>(rank->value());
}

// A manifest with the same facts about the checkpoint and nothing in it.
Manifest Bare(const Manifest& manifest) {
  Manifest bare = manifest;
  bare.files.clear();
  bare.tensors.clear();
  bare.aliases.clear();
  bare.foreign.clear();
  bare.blobs.clear();
  return bare;
}

}  // namespace

Handout MakeHandout(const Manifest& manifest) {
  Manifest common = Bare(manifest);
  // Only what differs between ranks, so that the frame is formatted with little in it.
  Manifest frame;
  frame.root_id = manifest.root_id;
  frame.id = manifest.id;
  frame.attempt = manifest.attempt;
  frame.world = manifest.world;
  std::vector<Manifest> own(static_cast<std::size_t>(manifest.world), frame);
  for (const ManifestFile& file : manifest.files) {
    const std::optional<ShardFileName> name = ParseShardName(file.name);
    const auto owner =
        OwnerIn(name.has_value() ? std::optional<Rank>(name->rank) : std::nullopt, manifest.world);
    if (owner.has_value()) own[*owner].files.push_back(file);
  }
  for (const auto& [name, facts] : manifest.tensors) {
    const auto owner = OwnerIn(OwnerOf(name), manifest.world);
    (owner.has_value() ? own[*owner] : common).tensors.emplace(name, facts);
  }
  for (const auto& [name, stored] : manifest.aliases) {
    const auto owner = OwnerIn(OwnerOf(stored), manifest.world);  // beside what it is a name of
    (owner.has_value() ? own[*owner] : common).aliases.emplace(name, stored);
  }
  // Every share has all parts, with the files of its own rank.
  for (const auto& [part, files] : manifest.foreign) {
    common.foreign[part] = {};
    for (Manifest& of_rank : own) of_rank.foreign[part] = {};
    for (const ForeignFile& file : files) {
      const std::optional<ShardFileName> name = ForeignOwner(file.name);
      const auto owner = OwnerIn(name.has_value() ? std::optional<Rank>(name->rank) : std::nullopt,
                                 manifest.world);
      if (owner.has_value()) own[*owner].foreign[part].push_back(file);
    }
  }
  for (const auto& [name, bytes] : manifest.blobs) {
    const auto owner = OwnerIn(OwnerOf(name), manifest.world);
    (owner.has_value() ? own[*owner] : common).blobs.emplace(name, bytes);
  }
  Handout handout;
  handout.common = FormatManifest(common);
  handout.own.reserve(own.size());
  for (const Manifest& of_rank : own) handout.own.push_back(FormatManifest(of_rank));
  return handout;
}

Result<Manifest> ReadShare(std::string_view common, std::string_view own, const std::string& what) {
  PERDURE_ASSIGN_OR_RETURN(Manifest share, ParseManifest(common, what));
  PERDURE_ASSIGN_OR_RETURN(Manifest mine, ParseManifest(own, what));
  share.files = std::move(mine.files);
  share.tensors.merge(mine.tensors);
  share.aliases.merge(mine.aliases);
  share.blobs.merge(mine.blobs);
  share.foreign = std::move(mine.foreign);
  return share;
}

ShareOfNames::ShareOfNames(const std::vector<std::string>& names, int world)
    : own_(static_cast<std::size_t>(world)) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto owner = OwnerIn(OwnerOf(names[i]), world);
    (owner.has_value() ? own_[*owner] : common_).push_back(i);
  }
}

std::vector<std::size_t> ShareOfNames::Of(Rank rank) const {
  const std::vector<std::size_t>& own = own_[static_cast<std::size_t>(rank.value())];
  std::vector<std::size_t> all;
  all.reserve(common_.size() + own.size());
  std::merge(common_.begin(), common_.end(), own.begin(), own.end(), std::back_inserter(all));
  return all;
}

}  // namespace perdure
