// Numbers out of text that came from elsewhere.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace perdure {

// All of `text` as a decimal whole number: no blanks, no plus sign, nothing behind it. Nothing when
// it is none, or beyond 64 bits.
inline std::optional<std::int64_t> ParseInteger(std::string_view text) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

}  // namespace perdure
