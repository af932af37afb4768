// Perdure's Status through gRPC: the nearest gRPC code for other people's tools, and our own code
// in the status details for ourselves.
#pragma once

#include <grpcpp/support/status.h>

#include "perdure/status.h"

namespace perdure::wire {

grpc::Status ToGrpc(const Status& status);

// What the other side answered, or kUnavailable / kDeadlineExceeded when it did not answer.
Status FromGrpc(const grpc::Status& status);

// True when the other side itself said this; false when gRPC made it up (connection refused,
// broken).
bool IsAnswer(const grpc::Status& status);

}  // namespace perdure::wire
