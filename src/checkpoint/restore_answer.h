// What a rank answers when rank 0 has proposed what the state shall begin with, as text and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "perdure/status.h"

namespace perdure {

struct RestoreAnswer {
  enum class Kind : std::uint8_t {
    kOk,
    kBad,        // damaged: pass it over
    kDifferent,  // whole, but not the state of this program
    kError,      // anything else, the disk for one
  };
  Kind kind = Kind::kOk;
  Status error;                    // kBad, kError
  std::vector<std::string> lines;  // kDifferent: one per difference
  std::string used;                // which of the names that are there it wants, in their order
};

std::string FormatRestoreAnswer(const RestoreAnswer& answer);
// An error for what FormatRestoreAnswer has not written.
Result<RestoreAnswer> ParseRestoreAnswer(const std::string& text);

// All names of a checkpoint in one order: the bits of RestoreAnswer::used.
std::vector<std::string> NamesOf(const Manifest& manifest);
// Hex, four names a digit.
std::string Bitmap(const std::vector<std::string>& names, const std::set<std::string>& used);
bool BitOf(const std::string& bitmap, std::size_t i);

}  // namespace perdure
