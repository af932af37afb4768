#include "storage/ring.h"

namespace perdure {

Result<std::unique_ptr<Ring>> OpenUring(unsigned /*depth*/) {
  return Status(Code::kUnimplemented, "this build is without liburing");
}

}  // namespace perdure
