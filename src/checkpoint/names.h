// The names of a checkpoint root. Parsed by full match: a name that is not exactly what this file
// formats belongs to somebody else and is never touched. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/lineage.h"
#include "perdure/ids.h"

namespace perdure {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kManifestTempName = "manifest.json.tmp";
inline constexpr std::string_view kRootFileName = "perdure.json";
inline constexpr std::string_view kLineageDirectory = "lineage";
inline constexpr std::string_view kPinsDirectory = "pins";
inline constexpr std::string_view kLatestName = "latest";

enum class NameKind : std::uint8_t {
  kCommitted,       // step-00000200.g3
  kAttempt,         // .tmp-step-00000220.g3-5f1c9a2e
  kTrash,           // .trash-step-00000200.g3: was committed, is retired
  kTrashedAttempt,  // .trash-step-00000220.g3-5f1c9a2e: never was
};

struct CheckpointName {
  NameKind kind = NameKind::kCommitted;
  CheckpointId id;
  std::string attempt;  // 8 hex digits; attempts only
  friend bool operator==(const CheckpointName&, const CheckpointName&) = default;
};

std::string FormatName(const CheckpointName& name);
std::optional<CheckpointName> ParseName(std::string_view name);
// "step-00000200.g3".
std::string CommittedName(const CheckpointId& id);

// One file of a rank. Nearly always there is one; see docs/formats/safetensors-shard.md.
struct ShardFileName {
  Rank rank;
  int world = 0;
  int part = 1;
  friend bool operator==(const ShardFileName&, const ShardFileName&) = default;
};

// "rank-00000-of-00004.safetensors", "rank-00000-of-00004-part-00002.safetensors".
std::string ShardName(Rank rank, int world, int part = 1);
std::optional<ShardFileName> ParseShardName(std::string_view name);
bool IsShardName(std::string_view name);

// Files of a program's own format lie in parts/<part>/rank-00000-of-00004/.
inline constexpr std::string_view kForeignDirectory = "parts";
std::string ForeignRankName(Rank rank, int world);
// A part's name that is one component of a path.
bool IsForeignPartName(std::string_view name);
// "rank-00000-of-00004/<one or more components>": leads nowhere else.
bool IsForeignFileName(std::string_view name);
// The rank directory at the beginning of such a name.
std::optional<ShardFileName> ForeignOwner(std::string_view name);

// What every rank has of its own is saved as "name@rank<r>"; the mark is in no program's names.
inline constexpr std::string_view kRankMark = "@rank";
std::string PerRankName(const std::string& name, Rank rank);
// The two halves of such a name; nothing for what is not one.
std::optional<std::string> PerRankBase(std::string_view full);
std::optional<Rank> OwnerOf(std::string_view full);

// "g3.claim", "g3.json".
std::string ClaimName(Generation generation);
std::string ForkName(Generation generation);
std::optional<Generation> ParseClaimName(std::string_view name);
std::optional<Generation> ParseForkName(std::string_view name);

// "step-00000200.g3.pin".
std::string PinName(const CheckpointId& id);
std::optional<CheckpointId> ParsePinName(std::string_view name);

}  // namespace perdure
