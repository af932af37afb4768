// What is fuzzed. A target takes any bytes, must come back in bounded time and memory, and aborts
// when a promise of the parser is broken. Each is an entry point of libFuzzer (build with
// -DPERDURE_FUZZER=ON and clang, see run.sh), and is driven by driver.cc in the ordinary tests.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
