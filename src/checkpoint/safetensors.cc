#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/damage.h"
#include "checkpoint/json.h"

namespace perdure {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::int64_t kLengthBytes = 8;

Result<SafetensorsEntry> ParseEntry(const std::string& name, const Json& json,
                                    const std::string& what) {
  const std::string of_tensor = fmt::format("{}: tensor {}", what, name);
  SafetensorsEntry entry;
  entry.name = name;
  PERDURE_ASSIGN_OR_RETURN(const std::string dtype, JsonText(json, "dtype", of_tensor));
  const Result<DType> parsed = DTypeFromName(dtype);
  if (!parsed.ok()) return Damaged(of_tensor, parsed.status().message());
  entry.dtype = *parsed;
  PERDURE_ASSIGN_OR_RETURN(entry.shape, JsonShape(json, "shape", of_tensor));
  PERDURE_ASSIGN_OR_RETURN(const Shape offsets, JsonShape(json, "data_offsets", of_tensor));
  if (offsets.size() != 2) return Damaged(of_tensor, "\"data_offsets\" is not [begin, end]");
  if (json.size() != 3) return Damaged(of_tensor, "has a key that the format does not know");
  entry.begin = offsets[0];
  entry.end = offsets[1];
  if (entry.end < entry.begin) return Damaged(of_tensor, "ends before it begins");
  const Result<std::int64_t> bytes = ByteCount(entry.dtype, entry.shape);
  if (!bytes.ok()) return Damaged(of_tensor, bytes.status().message());
  if (entry.end - entry.begin != *bytes) {
    return Damaged(of_tensor, fmt::format("{} {} needs {} bytes and has {}", NameOf(entry.dtype),
                                          ToString(entry.shape), *bytes, entry.end - entry.begin));
  }
  return entry;
}

}  // namespace

Result<std::int64_t> ParseSafetensorsLength(std::span<const std::byte> first_8,
                                            std::int64_t file_bytes, const std::string& what) {
  if (first_8.size() != kLengthBytes || file_bytes < kLengthBytes) {
    return Damaged(what, "too short for a safetensors file");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<std::uint64_t>(first_8[i]) << (8 * i);
  }
  if (length > static_cast<std::uint64_t>(kSafetensorsHeaderBytesMax)) {
    return Damaged(what, fmt::format("states a header of {} bytes; at most {} are allowed", length,
                                     kSafetensorsHeaderBytesMax));
  }
  if (static_cast<std::int64_t>(length) > file_bytes - kLengthBytes) {
    return Damaged(what,
                   fmt::format("states a header of {} bytes, the file has {}", length, file_bytes));
  }
  return static_cast<std::int64_t>(length);
}

Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json_text,
                                                 std::int64_t file_bytes, const std::string& what) {
  if (json_text.empty() || json_text.front() != '{') {
    return Damaged(what, "the header does not begin with '{'");
  }
  // Only spaces may follow the object; JSON itself would allow other white space.
  const std::size_t last = json_text.find_last_not_of(' ');
  if (json_text[last] != '}')
    return Damaged(what, "the header is padded with something not a space");
  PERDURE_ASSIGN_OR_RETURN(const Json json, ParseJson(json_text, what));
  SafetensorsHeader header;
  header.data_start = kLengthBytes + static_cast<std::int64_t>(json_text.size());
  for (const auto& [name, item] : json.items()) {
    if (name == kMetadataKey) {
      if (!item.is_object()) return Damaged(what, "__metadata__ is not an object");
      for (const auto& [key, value] : item.items()) {
        if (!value.is_string()) {
          return Damaged(what, fmt::format("__metadata__ \"{}\" is not a string", key));
        }
        header.metadata.emplace_back(key, value.get<std::string>());
      }
      continue;
    }
    PERDURE_ASSIGN_OR_RETURN(SafetensorsEntry entry, ParseEntry(name, item, what));
    header.entries.push_back(std::move(entry));
  }
  std::sort(header.entries.begin(), header.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              if (a.begin != b.begin) return a.begin < b.begin;
              return a.end != b.end ? a.end < b.end : a.name < b.name;
            });
  std::int64_t at = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.begin != at) {
      return Damaged(what, fmt::format("tensor {} begins at {}, the one before ends at {}",
                                       entry.name, entry.begin, at));
    }
    at = entry.end;
  }
  if (at != file_bytes - header.data_start) {
    return Damaged(what, fmt::format("the tensors need {} bytes of data, the file has {}", at,
                                     file_bytes - header.data_start));
  }
  return header;
}

Result<std::string> FormatSafetensorsHeader(
    const std::vector<SafetensorsEntry>& entries,
    const std::vector<std::pair<std::string, std::string>>& metadata) {
  std::string json = "{";
  const char* separator = "";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      json += fmt::format("{}{}:{}", separator, QuoteJson(key), QuoteJson(value));
      separator = ",";
    }
    json += "}";
    separator = ",";
  }
  for (const SafetensorsEntry& entry : entries) {
    json += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                        separator, QuoteJson(entry.name), NameOf(entry.dtype),
                        FormatShape(entry.shape), entry.begin, entry.end);
    separator = ",";
  }
  json += "}";
  const std::int64_t bytes = kLengthBytes + static_cast<std::int64_t>(json.size());
  const std::int64_t padded =
      (bytes + kShardDataAlignment - 1) / kShardDataAlignment * kShardDataAlignment;
  json.append(static_cast<std::size_t>(padded - bytes), ' ');
  if (static_cast<std::int64_t>(json.size()) > kSafetensorsHeaderBytesMax) {
    return Status(Code::kInvalidArgument,
                  fmt::format("a safetensors header of {} bytes for {} tensors; the format allows "
                              "{}",
                              json.size(), entries.size(), kSafetensorsHeaderBytesMax));
  }
  std::string header;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    header.push_back(static_cast<char>((json.size() >> (8 * i)) & 0xff));
  }
  header += json;
  return header;
}

bool DataOrder(DType a_dtype, const std::string& a_name, DType b_dtype, const std::string& b_name) {
  if (BitsOf(a_dtype) != BitsOf(b_dtype)) return BitsOf(a_dtype) > BitsOf(b_dtype);
  return a_name < b_name;
}

}  // namespace perdure
