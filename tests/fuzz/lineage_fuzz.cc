// A fork, lineage/gN.json.
#include "checkpoint/lineage.h"

#include "fuzz/sealed.h"
#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using perdure::FormatFork;
  using perdure::ParseFork;
  perdure::fuzz::TrySealed(
      {reinterpret_cast<const char*>(data), size},
      [](const std::string& text) { return ParseFork(text, "the-file"); }, FormatFork);
  return 0;
}
