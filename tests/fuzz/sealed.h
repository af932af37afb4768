// Sealed texts under the fuzzer: the seal refuses nearly every mutation, so each input is also
// tried with a seal that is right.
#pragma once

#include <string>
#include <string_view>

#include "base/check.h"
#include "checkpoint/json.h"
#include "fuzz/targets.h"

namespace perdure::fuzz {

// `parse(text)` gives a Result; `format(value)` the text again. What is accepted must survive the
// way back and forth.
template <class Parse, class Format>
void TryText(const std::string& text, Parse parse, Format format) {
  const auto parsed = parse(text);
  if (!parsed.ok()) {
    CheckRefusal(parsed.status());
    return;
  }
  const auto again = parse(format(*parsed));
  PERDURE_CHECK(again.ok(), again.status().message());
  PERDURE_CHECK(*again == *parsed, "the same after writing and reading");
}

template <class Parse, class Format>
void TrySealed(std::string_view input, Parse parse, Format format) {
  TryText(std::string(input), parse, format);
  const std::size_t seal = input.rfind("\"digest\"");
  TryText(SealJson(std::string(input.substr(0, seal))), parse, format);
}

}  // namespace perdure::fuzz
