#include "storage/store.h"

#include <fmt/format.h>

#include <algorithm>

namespace perdure {
namespace {

constexpr std::size_t kKeyBytesMax = 512;
constexpr std::string_view kTemporaryPrefix = ".tmp-";

bool IsKeyLetter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

}  // namespace

bool IsKeyComponent(std::string_view component) {
  return !component.empty() && component != "." && component != ".." &&
         component.substr(0, kTemporaryPrefix.size()) != kTemporaryPrefix &&
         std::all_of(component.begin(), component.end(), IsKeyLetter);
}

Status CheckKey(std::string_view key) {
  bool good = key.size() <= kKeyBytesMax;
  for (std::size_t begin = 0; good && begin <= key.size();) {
    const std::size_t end = std::min(key.find('/', begin), key.size());
    good = IsKeyComponent(key.substr(begin, end - begin));
    begin = end + 1;
  }
  if (good) return Ok();
  return Status(Code::kInvalidArgument,
                fmt::format("\"{}\" is no key of a store: at most {} bytes, components of letters, "
                            "digits, '.', '_' and '-' joined by '/'",
                            key, kKeyBytesMax));
}

std::string JoinKey(std::string_view directory, std::string_view name) {
  return directory.empty() ? std::string(name) : fmt::format("{}/{}", directory, name);
}

Result<std::string> GetWhole(Store& store, const std::string& key, std::int64_t bytes_max) {
  PERDURE_ASSIGN_OR_RETURN(std::string value, store.Get(key, 0, bytes_max + 1));
  if (static_cast<std::int64_t>(value.size()) <= bytes_max) return value;
  return Status(
      Code::kInvalidArgument,
      fmt::format("{} has more than {} bytes, which makes no sense", store.Where(key), bytes_max));
}

Result<bool> Exists(Store& store, const std::string& key) {
  const Status status = store.Get(key, 0, 1).status();
  if (status.code() == Code::kNotFound) return false;
  PERDURE_RETURN_IF_ERROR(status);
  return true;
}

}  // namespace perdure
