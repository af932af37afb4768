// What is fuzzed. A target takes any bytes, must come back in bounded time and memory, and aborts
// when a promise of the parser is broken. Each is an entry point of libFuzzer (build with
// -DPERDURE_FUZZER=ON and clang, see run.sh), and is driven by driver.cc in the ordinary tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "perdure/status.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace perdure::fuzz {

// What a parser of a file named "the-file" refuses is damaged, or written by a newer program.
inline void CheckRefusal(const Status& status) {
  const bool newer = status.code() == Code::kUnimplemented &&
                     status.message().find("newer Perdure") != std::string::npos;
  PERDURE_CHECK(newer || status.code() == Code::kDataLoss, "refused as damaged or as newer");
  PERDURE_CHECK(status.message().find("the-file") != std::string::npos, "named");
}

}  // namespace perdure::fuzz
