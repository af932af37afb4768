// The safetensors container (https://github.com/huggingface/safetensors, rules as in its
// safetensors/src/tensor.rs): 8 bytes of little-endian header length, a JSON header, the data.
// Parses strictly, so that whatever is accepted here opens in every other reader. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "perdure/status.h"
#include "perdure/tensor.h"

namespace perdure {

// The limit of the format, for the JSON header without its 8-byte length.
inline constexpr std::int64_t kSafetensorsHeaderBytesMax = 100'000'000;
// Our files begin their data on a page, so that direct I/O can read it in place.
inline constexpr std::int64_t kShardDataAlignment = 4096;

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::int64_t begin = 0;  // in bytes from where the data begins
  std::int64_t end = 0;
  friend bool operator==(const SafetensorsEntry&, const SafetensorsEntry&) = default;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their data
  std::vector<std::pair<std::string, std::string>> metadata;
  std::int64_t data_start = 0;  // in the file
};

// The header's length in bytes from the first 8 bytes of a file; kDataLoss when it cannot be.
Result<std::int64_t> ParseSafetensorsLength(std::span<const std::byte> first_8,
                                            std::int64_t file_bytes, const std::string& what);

// `json` is the header without its length. kDataLoss unless every rule of the format holds,
// including that the entries fill the file to its last byte.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, std::int64_t file_bytes,
                                                 const std::string& what);

// Length and JSON, padded with spaces to a multiple of kShardDataAlignment. `entries` lie one after
// the other from 0. kInvalidArgument when the format's limit is passed.
Result<std::string> FormatSafetensorsHeader(
    const std::vector<SafetensorsEntry>& entries,
    const std::vector<std::pair<std::string, std::string>>& metadata);

// The order in which data is written: wide dtypes first, so that every entry is aligned to its
// width; then by name.
bool DataOrder(DType a_dtype, const std::string& a_name, DType b_dtype, const std::string& b_name);

}  // namespace perdure
