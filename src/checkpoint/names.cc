#include "checkpoint/names.h"

#include <fmt/format.h>

#include <charconv>

namespace perdure {
namespace {

bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::optional<std::int64_t> TakeNumber(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool IsHex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

constexpr std::size_t kAttemptDigits = 8;
constexpr std::size_t kForeignNameBytesMax = 1024;

// Of a path: printable, and leading down.
bool IsComponent(std::string_view name) {
  if (name.empty() || name == "." || name == "..") return false;
  for (const char c : name) {
    if (c == '/' || static_cast<unsigned char>(c) < 0x20) return false;
  }
  return true;
}
constexpr std::string_view kPinSuffix = ".pin";

std::optional<Generation> ParseLineageName(std::string_view name,
                                           std::string (*format)(Generation)) {
  std::string_view rest = name;
  if (!TakePrefix(rest, "g")) return std::nullopt;
  const std::optional<std::int64_t> number = TakeNumber(rest);
  if (!number.has_value() || *number < 1 || format(Generation(*number)) != name) {
    return std::nullopt;
  }
  return Generation(*number);
}

}  // namespace

std::string CommittedName(const CheckpointId& id) {
  return fmt::format("step-{:08}.g{}", id.step.value(), id.generation.value());
}

std::string FormatName(const CheckpointName& name) {
  switch (name.kind) {
    case NameKind::kCommitted:
      return CommittedName(name.id);
    case NameKind::kAttempt:
      return fmt::format(".tmp-{}-{}", CommittedName(name.id), name.attempt);
    case NameKind::kTrash:
      return fmt::format(".trash-{}", CommittedName(name.id));
    case NameKind::kTrashedAttempt:
      return fmt::format(".trash-{}-{}", CommittedName(name.id), name.attempt);
  }
  return {};
}

std::optional<CheckpointName> ParseName(std::string_view name) {
  CheckpointName parsed;
  std::string_view rest = name;
  const bool attempt = TakePrefix(rest, ".tmp-");
  const bool trash = !attempt && TakePrefix(rest, ".trash-");
  if (!TakePrefix(rest, "step-")) return std::nullopt;
  const std::optional<std::int64_t> step = TakeNumber(rest);
  if (!step.has_value() || !TakePrefix(rest, ".g")) return std::nullopt;
  const std::optional<std::int64_t> generation = TakeNumber(rest);
  if (!generation.has_value() || *generation < 1) return std::nullopt;
  parsed.id = {Generation(*generation), Step(*step)};
  if (TakePrefix(rest, "-")) {
    if (rest.size() != kAttemptDigits || !IsHex(rest)) return std::nullopt;
    parsed.attempt = std::string(rest);
    rest = {};
  }
  if (attempt) {
    parsed.kind = NameKind::kAttempt;
  } else if (trash) {
    parsed.kind = parsed.attempt.empty() ? NameKind::kTrash : NameKind::kTrashedAttempt;
  }
  // The way back must give the same name: no sign, no missing or superfluous zeros.
  if (!rest.empty() || FormatName(parsed) != name) return std::nullopt;
  return parsed;
}

std::string ShardName(Rank rank, int world, int part) {
  const std::string which = part == 1 ? "" : fmt::format("-part-{:05}", part);
  return fmt::format("rank-{:05}-of-{:05}{}.safetensors", rank.value(), world, which);
}

std::optional<ShardFileName> ParseShardName(std::string_view name) {
  std::string_view rest = name;
  if (!TakePrefix(rest, "rank-")) return std::nullopt;
  const std::optional<std::int64_t> rank = TakeNumber(rest);
  if (!rank.has_value() || !TakePrefix(rest, "-of-")) return std::nullopt;
  const std::optional<std::int64_t> world = TakeNumber(rest);
  if (!world.has_value() || *world > INT32_MAX || *rank >= *world) return std::nullopt;
  std::int64_t part = 1;
  if (TakePrefix(rest, "-part-")) {
    const std::optional<std::int64_t> number = TakeNumber(rest);
    if (!number.has_value() || *number > INT32_MAX) return std::nullopt;
    part = *number;
  }
  const ShardFileName parsed{Rank(*rank), static_cast<int>(*world), static_cast<int>(part)};
  if (part < 1 || ShardName(parsed.rank, parsed.world, parsed.part) != name) return std::nullopt;
  return parsed;
}

bool IsShardName(std::string_view name) {
  return ParseShardName(name).has_value();
}

std::string ForeignRankName(Rank rank, int world) {
  return fmt::format("rank-{:05}-of-{:05}", rank.value(), world);
}

bool IsForeignPartName(std::string_view name) {
  return IsComponent(name) && name.size() <= kForeignNameBytesMax;
}

std::optional<ShardFileName> ForeignOwner(std::string_view name) {
  const std::string_view directory = name.substr(0, name.find('/'));
  return ParseShardName(std::string(directory) + ".safetensors");
}

bool IsForeignFileName(std::string_view name) {
  const std::optional<ShardFileName> owner = ForeignOwner(name);
  if (!owner.has_value() || owner->part != 1 || name.size() > kForeignNameBytesMax) return false;
  std::size_t at = name.find('/');
  if (at == std::string_view::npos) return false;
  while (at != std::string_view::npos) {
    name.remove_prefix(at + 1);
    at = name.find('/');
    if (!IsComponent(name.substr(0, at))) return false;
  }
  return true;
}

std::string PerRankName(const std::string& name, Rank rank) {
  return fmt::format("{}{}{}", name, kRankMark, rank.value());
}

std::optional<std::string> PerRankBase(std::string_view full) {
  const std::size_t mark = full.rfind(kRankMark);
  if (mark == std::string_view::npos) return std::nullopt;
  return std::string(full.substr(0, mark));
}

std::optional<Rank> OwnerOf(std::string_view full) {
  const std::size_t mark = full.rfind(kRankMark);
  if (mark == std::string_view::npos) return std::nullopt;
  full.remove_prefix(mark + kRankMark.size());
  const std::optional<std::int64_t> rank = TakeNumber(full);
  if (!rank.has_value() || !full.empty()) return std::nullopt;
  return Rank(*rank);
}

std::string ClaimName(Generation generation) {
  return fmt::format("g{}.claim", generation.value());
}

std::string ForkName(Generation generation) {
  return fmt::format("g{}.json", generation.value());
}

std::optional<Generation> ParseClaimName(std::string_view name) {
  return ParseLineageName(name, &ClaimName);
}

std::optional<Generation> ParseForkName(std::string_view name) {
  return ParseLineageName(name, &ForkName);
}

std::string PinName(const CheckpointId& id) {
  return CommittedName(id).append(kPinSuffix);
}

std::optional<CheckpointId> ParsePinName(std::string_view name) {
  if (name.size() <= kPinSuffix.size()) return std::nullopt;
  const std::size_t stem = name.size() - kPinSuffix.size();
  if (name.substr(stem) != kPinSuffix) return std::nullopt;
  const std::optional<CheckpointName> parsed = ParseName(name.substr(0, stem));
  if (!parsed.has_value() || parsed->kind != NameKind::kCommitted) return std::nullopt;
  return parsed->id;
}

}  // namespace perdure
