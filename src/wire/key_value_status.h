// How the control store's errors travel: as gRPC codes, so that any client can read them.
#pragma once

#include <grpcpp/support/status.h>

#include "perdure/status.h"

namespace perdure {

grpc::Status ToGrpcStatus(const Status& status);

// For an answer that the server gave (not for a broken connection).
Status FromGrpcAnswer(const grpc::Status& status);

}  // namespace perdure
