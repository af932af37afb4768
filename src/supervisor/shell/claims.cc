#include "supervisor/shell/claims.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace perdure {
namespace {

// "g12.claim" and "g12.json" -> 12; anything else -> 0.
std::int64_t NumberIn(std::string_view name) {
  if (name.size() < 2 || name[0] != 'g') return 0;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data() + 1, name.data() + name.size(), number);
  const std::string_view rest(end, static_cast<std::size_t>(name.data() + name.size() - end));
  return error == std::errc() && number > 0 && (rest == ".claim" || rest == ".json") ? number : 0;
}

}  // namespace

Generation HighestClaim(const std::string& checkpoint_directory) {
  std::int64_t highest = 0;
  if (checkpoint_directory.empty()) return Generation();
  std::error_code error;
  std::filesystem::directory_iterator entry(checkpoint_directory + "/lineage", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    highest = std::max(highest, NumberIn(entry->path().filename().string()));
  }
  return Generation(highest);
}

}  // namespace perdure
