// Strict JSON for the files of a checkpoint: no duplicate keys, bounded depth, typed access with
// errors that name file and key, and the seal that makes every byte of a small file count.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "perdure/status.h"
#include "perdure/tensor.h"

namespace perdure {

inline constexpr int kJsonDepthMax = 16;

// kDataLoss with `what` in front when `text` is not one JSON value, holds a key twice in one object
// or is nested deeper than kJsonDepthMax.
Result<nlohmann::json> ParseJson(std::string_view text, const std::string& what);

// A JSON string literal with its quotes. Bytes that are not UTF-8 are replaced; names that get into
// a checkpoint were checked before.
std::string QuoteJson(std::string_view text);
bool IsUtf8(std::string_view text);
std::string FormatShape(const Shape& shape);  // "[3,4]"

// Members of an object; kDataLoss naming `what` and `key` when absent or of another type.
Result<std::string> JsonText(const nlohmann::json& object, const char* key,
                             const std::string& what);
// 0 … 2^63-1.
Result<std::int64_t> JsonCount(const nlohmann::json& object, const char* key,
                               const std::string& what);
// "format_version", from 1 to `newest`. kUnimplemented: a newer program wrote this. That is no
// damage, so nobody passes it over for something older.
Result<int> JsonFormatVersion(const nlohmann::json& object, int newest, const std::string& what);
Result<Shape> JsonShape(const nlohmann::json& object, const char* key, const std::string& what);
// The member itself, which must be of `type`.
Result<const nlohmann::json*> JsonMember(const nlohmann::json& object, const char* key,
                                         nlohmann::json::value_t type, const std::string& what);

// A sealed text is a JSON object whose last line is `"digest": "<32 hex>"`: XXH3-128 over every
// byte before that line. `body` is everything before it: "{\n … ,\n".
std::string SealJson(std::string body);
// The digest of a sealed text; kDataLoss when the seal is missing, is not the very end, or does not
// match.
Result<std::string> CheckSeal(std::string_view text, const std::string& what);

}  // namespace perdure
