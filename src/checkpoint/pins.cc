#include "checkpoint/pins.h"

#include <fmt/format.h>

#include <optional>

#include "base/posix.h"
#include "checkpoint/json.h"
#include "checkpoint/names.h"

namespace perdure {
namespace {

constexpr std::int64_t kPinBytesMax = std::int64_t{1} << 20;

std::string PinKey(const CheckpointId& id) {
  return JoinKey(kPinsDirectory, PinName(id));
}

// For people only; what cannot be read is left out.
void ReadContent(Store& store, Pin& pin) {
  const std::string path = store.Where(PinKey(pin.id));
  const Result<std::string> text = GetWhole(store, PinKey(pin.id), kPinBytesMax);
  if (!text.ok() || !CheckSeal(*text, path).ok()) return;
  const Result<nlohmann::json> json = ParseJson(*text, path);
  if (!json.ok()) return;
  const Result<std::string> reason = JsonText(*json, "reason", path);
  const Result<std::string> created = JsonText(*json, "created", path);
  if (reason.ok()) pin.reason = *reason;
  if (created.ok()) pin.created = *created;
}

}  // namespace

Status PinCheckpoint(Store& store, const CheckpointId& id, const std::string& reason,
                     WallTime now) {
  const std::string name = CommittedName(id);
  const std::string manifest = JoinKey(name, kManifestName);
  PERDURE_RETURN_IF_ERROR(store.Get(manifest, 0, 1).status());
  const Status created = store.Create(
      PinKey(id), SealJson(fmt::format("{{\n\"format_version\": 1,\n\"checkpoint\": {},\n"
                                       "\"reason\": {},\n\"created\": \"{}\",\n",
                                       QuoteJson(name), QuoteJson(reason), FormatWallTime(now))));
  if (!created.ok() && created.code() != Code::kAlreadyExists) return created;
  PERDURE_ASSIGN_OR_RETURN(const bool still_there, Exists(store, manifest));
  if (still_there) return Ok();
  static_cast<void>(store.Remove(PinKey(id)).ok());
  return Status(Code::kNotFound,
                fmt::format("{} was retired meanwhile, and is deleted at the next commit; export "
                            "it if it is still there as .trash-{}",
                            name, name));
}

Status UnpinCheckpoint(Store& store, const CheckpointId& id) {
  PERDURE_ASSIGN_OR_RETURN(const bool pinned, IsPinned(store, id));
  if (pinned) return store.Remove(PinKey(id));
  return Status(Code::kNotFound, fmt::format("{} is not pinned", CommittedName(id)));
}

Result<std::map<std::string, Pin>> ReadPins(Store& store) {
  std::map<std::string, Pin> pins;
  PERDURE_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           store.List(std::string(kPinsDirectory)));
  for (const std::string& name : names) {
    const std::optional<CheckpointId> id = ParsePinName(name);
    if (!id.has_value()) continue;
    Pin pin;
    pin.id = *id;
    ReadContent(store, pin);
    pins[CommittedName(*id)] = std::move(pin);
  }
  return pins;
}

Result<bool> IsPinned(Store& store, const CheckpointId& id) {
  return Exists(store, PinKey(id));
}

}  // namespace perdure
