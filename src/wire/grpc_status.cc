#include "wire/grpc_status.h"

#include <string>
#include <string_view>

namespace perdure::wire {
namespace {

constexpr std::string_view kDetailsPrefix = "perdure:";

grpc::StatusCode GrpcCodeOf(Code code) {
  switch (code) {
    case Code::kOk:
      return grpc::StatusCode::OK;
    case Code::kInvalidArgument:
    case Code::kUserError:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case Code::kNotFound:
      return grpc::StatusCode::NOT_FOUND;
    case Code::kAlreadyExists:
      return grpc::StatusCode::ALREADY_EXISTS;
    case Code::kFailedPrecondition:
      return grpc::StatusCode::FAILED_PRECONDITION;
    case Code::kUnimplemented:
      return grpc::StatusCode::UNIMPLEMENTED;
    case Code::kUnavailable:
    case Code::kCommFailed:
      return grpc::StatusCode::UNAVAILABLE;
    case Code::kDeadlineExceeded:
      return grpc::StatusCode::DEADLINE_EXCEEDED;
    case Code::kResourceExhausted:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case Code::kDataLoss:
      return grpc::StatusCode::DATA_LOSS;
    case Code::kFenced:
      return grpc::StatusCode::PERMISSION_DENIED;
    case Code::kPreempted:
    case Code::kAborted:
      return grpc::StatusCode::ABORTED;
    case Code::kInternal:
      return grpc::StatusCode::INTERNAL;
  }
  return grpc::StatusCode::UNKNOWN;
}

Code CodeOf(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK:
      return Code::kOk;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return Code::kDeadlineExceeded;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return Code::kResourceExhausted;
    case grpc::StatusCode::UNIMPLEMENTED:
      return Code::kUnimplemented;
    case grpc::StatusCode::CANCELLED:
      return Code::kAborted;
    case grpc::StatusCode::INVALID_ARGUMENT:
      return Code::kInvalidArgument;
    default:
      return Code::kUnavailable;
  }
}

}  // namespace

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(GrpcCodeOf(status.code()), status.message(),
                      std::string(kDetailsPrefix) + std::string(NameOf(status.code())));
}

bool IsAnswer(const grpc::Status& status) {
  return status.ok() || status.error_details().rfind(kDetailsPrefix, 0) == 0;
}

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return Ok();
  Code code = CodeOf(status.error_code());
  if (IsAnswer(status)) {
    const std::string name = status.error_details().substr(kDetailsPrefix.size());
    for (int i = 1; i <= static_cast<int>(Code::kInternal); ++i) {
      if (name == NameOf(static_cast<Code>(i))) code = static_cast<Code>(i);
    }
  }
  return Status(code, status.error_message());
}

}  // namespace perdure::wire
