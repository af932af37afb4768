#include "checkpoint/pins.h"

#include <fmt/format.h>

#include <optional>

#include "base/posix.h"
#include "checkpoint/claim.h"
#include "checkpoint/json.h"
#include "checkpoint/names.h"

namespace perdure {
namespace {

constexpr std::int64_t kPinBytesMax = std::int64_t{1} << 20;

std::string PinsPath(const std::string& root) {
  return JoinPath(root, kPinsDirectory);
}

Status MakePinsDirectory(Files& files, const std::string& root) {
  if (files.Info(PinsPath(root)).ok()) return Ok();
  const Status made = files.MakeDirectory(PinsPath(root));
  if (!made.ok() && made.code() != Code::kAlreadyExists) return made;
  return files.SyncDirectory(root);
}

// For people only; what cannot be read is left out.
void ReadContent(Files& files, const std::string& path, Pin& pin) {
  const Result<std::string> text = ReadWholeFile(files, path, kPinBytesMax);
  if (!text.ok() || !CheckSeal(*text, path).ok()) return;
  const Result<nlohmann::json> json = ParseJson(*text, path);
  if (!json.ok()) return;
  const Result<std::string> reason = JsonText(*json, "reason", path);
  const Result<std::string> created = JsonText(*json, "created", path);
  if (reason.ok()) pin.reason = *reason;
  if (created.ok()) pin.created = *created;
}

}  // namespace

Status PinCheckpoint(Files& files, const std::string& root, const CheckpointId& id,
                     const std::string& reason, WallTime now) {
  const std::string name = CommittedName(id);
  const std::string manifest = JoinPath(JoinPath(root, name), kManifestName);
  PERDURE_RETURN_IF_ERROR(files.Info(manifest).status());
  PERDURE_RETURN_IF_ERROR(MakePinsDirectory(files, root));
  const std::string text = SealJson(fmt::format(
      "{{\n\"format_version\": 1,\n\"checkpoint\": {},\n\"reason\": {},\n\"created\": \"{}\",\n",
      QuoteJson(name), QuoteJson(reason), FormatWallTime(now)));
  const Status published = PublishExclusive(files, PinsPath(root), PinName(id), text);
  if (!published.ok() && published.code() != Code::kAlreadyExists) return published;
  const Status there = files.Info(manifest).status();
  if (there.code() != Code::kNotFound) return there;
  static_cast<void>(UnpinCheckpoint(files, root, id).ok());
  return Status(Code::kNotFound,
                fmt::format("{} was retired meanwhile, and is deleted at the next commit; export "
                            "it if it is still there as .trash-{}",
                            name, name));
}

Status UnpinCheckpoint(Files& files, const std::string& root, const CheckpointId& id) {
  const Status removed = files.Remove(JoinPath(PinsPath(root), PinName(id)));
  if (removed.code() == Code::kNotFound) {
    return Status(Code::kNotFound, fmt::format("{} is not pinned", CommittedName(id)));
  }
  PERDURE_RETURN_IF_ERROR(removed);
  return files.SyncDirectory(PinsPath(root));
}

Result<std::map<std::string, Pin>> ReadPins(Files& files, const std::string& root) {
  std::map<std::string, Pin> pins;
  const Result<std::vector<DirectoryEntry>> entries = files.List(PinsPath(root));
  if (entries.status().code() == Code::kNotFound) return pins;
  PERDURE_RETURN_IF_ERROR(entries.status());
  for (const DirectoryEntry& entry : *entries) {
    const std::optional<CheckpointId> id = ParsePinName(entry.name);
    if (!id.has_value()) continue;
    Pin pin;
    pin.id = *id;
    ReadContent(files, JoinPath(PinsPath(root), entry.name), pin);
    pins[CommittedName(*id)] = std::move(pin);
  }
  return pins;
}

Result<bool> IsPinned(Files& files, const std::string& root, const CheckpointId& id) {
  const Status found = files.Info(JoinPath(PinsPath(root), PinName(id))).status();
  if (found.code() == Code::kNotFound) return false;
  PERDURE_RETURN_IF_ERROR(found);
  return true;
}

}  // namespace perdure
