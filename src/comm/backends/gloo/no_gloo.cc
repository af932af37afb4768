#include "comm/backends/gloo/gloo_backend.h"

namespace perdure {

Result<std::unique_ptr<Backend>> ConnectGlooBackend(const Group& /*group*/,
                                                    const GlooOptions& /*options*/,
                                                    KeyValue& /*store*/,
                                                    FailureArbiter& /*arbiter*/,
                                                    Deadline /*deadline*/) {
  return Status(Code::kUnimplemented,
                "this build has no Gloo, so only one rank is possible; install libgloo-dev and "
                "build again");
}

}  // namespace perdure
