#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <set>

#include "checkpoint/damage.h"
#include "checkpoint/json.h"
#include "checkpoint/names.h"

namespace perdure {
namespace {

using Json = nlohmann::json;

// What has no files of the program's own is still written as version 1.
constexpr int kVersionWithForeign = 2;

std::string FormatForeign(const Manifest& manifest) {
  std::string text;
  for (const auto& [part, files] : manifest.foreign) {
    text += fmt::format("{}\n  {}: [", text.empty() ? "" : ",", QuoteJson(part));
    const char* separator = "";
    for (const ForeignFile& file : files) {
      text += fmt::format("{}\n    {{\"name\": {}, \"bytes\": {}, \"xxh3_128\": {}}}", separator,
                          QuoteJson(file.name), file.bytes, QuoteJson(file.digest));
      separator = ",";
    }
    text += "]";
  }
  return text;
}

Status ParseForeign(const Json& json, const std::string& what, Manifest& manifest) {
  PERDURE_ASSIGN_OR_RETURN(const Json* const parts,
                           JsonMember(json, "foreign", Json::value_t::object, what));
  for (const auto& [part, items] : parts->items()) {
    if (!IsForeignPartName(part) || !items.is_array()) {
      return Damaged(what, fmt::format("\"{}\" is not a part with files", part));
    }
    std::set<std::string> names;
    std::vector<ForeignFile>& files = manifest.foreign[part];
    for (const Json& item : items) {
      ForeignFile file;
      PERDURE_ASSIGN_OR_RETURN(file.name, JsonText(item, "name", what));
      PERDURE_ASSIGN_OR_RETURN(file.bytes, JsonCount(item, "bytes", what));
      PERDURE_ASSIGN_OR_RETURN(file.digest, JsonText(item, "xxh3_128", what));
      // Also keeps a name from leading out of the directory.
      if (!IsForeignFileName(file.name) || ForeignOwner(file.name)->world != manifest.world) {
        return Damaged(what, fmt::format("\"{}\" is not the name of a part's file", file.name));
      }
      if (!names.insert(file.name).second) {
        return Damaged(what, fmt::format("file {} of part {} is listed twice", file.name, part));
      }
      files.push_back(std::move(file));
    }
  }
  return Ok();
}

Status ParseAliases(const Json& json, const std::string& what, Manifest& manifest) {
  if (!json.contains("aliases")) return Ok();
  PERDURE_ASSIGN_OR_RETURN(const Json* const aliases,
                           JsonMember(json, "aliases", Json::value_t::object, what));
  for (const auto& [name, item] : aliases->items()) {
    if (!item.is_string() || manifest.tensors.count(name) != 0 ||
        manifest.tensors.count(item.get<std::string>()) == 0) {
      return Damaged(what, fmt::format("alias {} is not another name of a tensor", name));
    }
    manifest.aliases[name] = item.get<std::string>();
  }
  return Ok();
}

}  // namespace

std::int64_t Manifest::TotalBytes() const {
  std::int64_t total = 0;
  for (const ManifestFile& file : files) total += file.bytes;
  for (const auto& [part, of_part] : foreign) {
    for (const ForeignFile& file : of_part) total += file.bytes;
  }
  return total;
}

const std::string& Manifest::Stored(const std::string& name) const {
  const auto alias = aliases.find(name);
  return alias == aliases.end() ? name : alias->second;
}

const TensorFacts* Manifest::FactsOf(const std::string& name) const {
  const auto found = tensors.find(Stored(name));
  return found == tensors.end() ? nullptr : &found->second;
}

std::map<std::string, TensorFacts> Manifest::TensorsByName() const {
  std::map<std::string, TensorFacts> all = tensors;
  for (const auto& [name, stored] : aliases) all.emplace(name, tensors.at(stored));
  return all;
}

std::string FormatManifest(const Manifest& manifest) {
  std::string text = "{\n";
  // A reader of version 1 would not miss what it does not know of.
  text +=
      fmt::format("\"format_version\": {},\n", manifest.foreign.empty() ? 1 : kVersionWithForeign);
  text += fmt::format("\"root_id\": {},\n", QuoteJson(manifest.root_id));
  text += fmt::format("\"job\": {},\n", QuoteJson(manifest.job));
  text += fmt::format("\"step\": {},\n", manifest.id.step.value());
  text += fmt::format("\"generation\": {},\n", manifest.id.generation.value());
  text += fmt::format("\"attempt\": {},\n", QuoteJson(manifest.attempt));
  text += fmt::format("\"created\": {},\n", QuoteJson(manifest.created));
  text += fmt::format("\"world\": {},\n", manifest.world);
  text += "\"mesh\": {";
  const char* separator = "";
  for (const auto& [axis, ranks] : manifest.mesh) {
    text += fmt::format("{}{}: {}", separator, QuoteJson(axis), ranks);
    separator = ", ";
  }
  text += "},\n\"files\": [";
  separator = "";
  for (const ManifestFile& file : manifest.files) {
    text += fmt::format(
        "{}\n  {{\"name\": {}, \"bytes\": {}, \"header_bytes\": {}, \"header_xxh3_128\": {}}}",
        separator, QuoteJson(file.name), file.bytes, file.header_bytes,
        QuoteJson(file.header_digest));
    separator = ",";
  }
  text += "],\n\"tensors\": {";
  separator = "";
  for (const auto& [name, facts] : manifest.tensors) {
    text += fmt::format("{}\n  {}: {{\"dtype\": \"{}\", \"shape\": {}}}", separator,
                        QuoteJson(name), NameOf(facts.dtype), FormatShape(facts.shape));
    separator = ",";
  }
  if (!manifest.aliases.empty()) {
    text += "},\n\"aliases\": {";
    separator = "";
    for (const auto& [name, stored] : manifest.aliases) {
      text += fmt::format("{}\n  {}: {}", separator, QuoteJson(name), QuoteJson(stored));
      separator = ",";
    }
  }
  text += "},\n\"blobs\": {";
  separator = "";
  for (const auto& [name, bytes] : manifest.blobs) {
    text += fmt::format("{}\n  {}: {{\"bytes\": {}}}", separator, QuoteJson(name), bytes);
    separator = ",";
  }
  if (!manifest.foreign.empty()) text += "},\n\"foreign\": {" + FormatForeign(manifest);
  text += fmt::format("}},\n\"producer\": {},\n", QuoteJson(manifest.producer));
  return SealJson(std::move(text));
}

Result<Manifest> ParseManifest(std::string_view text, const std::string& what) {
  PERDURE_RETURN_IF_ERROR(CheckSeal(text, what).status());
  PERDURE_ASSIGN_OR_RETURN(const Json json, ParseJson(text, what));
  PERDURE_ASSIGN_OR_RETURN(const int version, JsonFormatVersion(json, kVersionWithForeign, what));
  Manifest manifest;
  PERDURE_ASSIGN_OR_RETURN(manifest.root_id, JsonText(json, "root_id", what));
  PERDURE_ASSIGN_OR_RETURN(manifest.job, JsonText(json, "job", what));
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t step, JsonCount(json, "step", what));
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t generation, JsonCount(json, "generation", what));
  manifest.id = {Generation(generation), Step(step)};
  PERDURE_ASSIGN_OR_RETURN(manifest.attempt, JsonText(json, "attempt", what));
  PERDURE_ASSIGN_OR_RETURN(manifest.created, JsonText(json, "created", what));
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t world, JsonCount(json, "world", what));
  if (world < 1 || world > INT32_MAX) return Damaged(what, "\"world\" is out of range");
  manifest.world = static_cast<int>(world);
  PERDURE_ASSIGN_OR_RETURN(const Json* const mesh,
                           JsonMember(json, "mesh", Json::value_t::object, what));
  for (const auto& [axis, ranks] : mesh->items()) {
    if (!ranks.is_number_unsigned()) return Damaged(what, "\"mesh\" holds something not a number");
    manifest.mesh[axis] = ranks.get<int>();
  }
  PERDURE_ASSIGN_OR_RETURN(const Json* const files,
                           JsonMember(json, "files", Json::value_t::array, what));
  std::set<std::string> names;
  for (const Json& item : *files) {
    ManifestFile file;
    PERDURE_ASSIGN_OR_RETURN(file.name, JsonText(item, "name", what));
    PERDURE_ASSIGN_OR_RETURN(file.bytes, JsonCount(item, "bytes", what));
    PERDURE_ASSIGN_OR_RETURN(file.header_bytes, JsonCount(item, "header_bytes", what));
    PERDURE_ASSIGN_OR_RETURN(file.header_digest, JsonText(item, "header_xxh3_128", what));
    // Also keeps a name from leading out of the directory.
    if (!IsShardName(file.name)) {
      return Damaged(what, fmt::format("\"{}\" is not the name of a shard", file.name));
    }
    if (!names.insert(file.name).second) {
      return Damaged(what, fmt::format("file {} is listed twice", file.name));
    }
    if (file.header_bytes > file.bytes) {
      return Damaged(what, fmt::format("file {} has a header larger than itself", file.name));
    }
    manifest.files.push_back(std::move(file));
  }
  PERDURE_ASSIGN_OR_RETURN(const Json* const tensors,
                           JsonMember(json, "tensors", Json::value_t::object, what));
  for (const auto& [name, item] : tensors->items()) {
    TensorFacts facts;
    const std::string of_tensor = fmt::format("{}: tensor {}", what, name);
    PERDURE_ASSIGN_OR_RETURN(const std::string dtype, JsonText(item, "dtype", of_tensor));
    const Result<DType> parsed = DTypeFromName(dtype);
    if (!parsed.ok()) return Damaged(of_tensor, parsed.status().message());
    facts.dtype = *parsed;
    PERDURE_ASSIGN_OR_RETURN(facts.shape, JsonShape(item, "shape", of_tensor));
    if (const Status countable = ElementCount(facts.shape).status(); !countable.ok()) {
      return Damaged(of_tensor, countable.message());
    }
    manifest.tensors[name] = std::move(facts);
  }
  PERDURE_RETURN_IF_ERROR(ParseAliases(json, what, manifest));
  PERDURE_ASSIGN_OR_RETURN(const Json* const blobs,
                           JsonMember(json, "blobs", Json::value_t::object, what));
  for (const auto& [name, item] : blobs->items()) {
    PERDURE_ASSIGN_OR_RETURN(manifest.blobs[name],
                             JsonCount(item, "bytes", fmt::format("{}: blob {}", what, name)));
  }
  if (version == kVersionWithForeign) PERDURE_RETURN_IF_ERROR(ParseForeign(json, what, manifest));
  PERDURE_ASSIGN_OR_RETURN(manifest.producer, JsonText(json, "producer", what));
  return manifest;
}

}  // namespace perdure
