// A checkpoint's manifest.json.
#include "checkpoint/manifest.h"

#include "fuzz/sealed.h"
#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using perdure::FormatManifest;
  using perdure::ParseManifest;
  perdure::fuzz::TrySealed(
      {reinterpret_cast<const char*>(data), size},
      [](const std::string& text) { return ParseManifest(text, "the-file"); }, FormatManifest);
  return 0;
}
