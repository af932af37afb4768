// How the room says that a file is not what was written.
#pragma once

#include <string>
#include <string_view>

#include "perdure/status.h"

namespace perdure {

// kDataLoss: "<what>: <why>", where `what` is a path.
inline Status Damaged(const std::string& what, std::string_view why) {
  return Status(Code::kDataLoss, std::string(what).append(": ").append(why));
}

}  // namespace perdure
