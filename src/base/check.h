// PERDURE_CHECK: for what our own code promised. Disks, peers, users and files get a Status
// instead.
#pragma once

#include <string_view>

namespace perdure {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              std::string_view message);

}  // namespace perdure

#define PERDURE_CHECK(condition, message)                                              \
  do {                                                                                 \
    if (!(condition)) ::perdure::CheckFailed(__FILE__, __LINE__, #condition, message); \
  } while (false)
