#include "wire/key_value_status.h"

#include <array>
#include <utility>

namespace perdure {
namespace {

constexpr std::array<std::pair<Code, grpc::StatusCode>, 10> kCodes = {{
    {Code::kInvalidArgument, grpc::StatusCode::INVALID_ARGUMENT},
    {Code::kNotFound, grpc::StatusCode::NOT_FOUND},
    {Code::kAlreadyExists, grpc::StatusCode::ALREADY_EXISTS},
    {Code::kFailedPrecondition, grpc::StatusCode::FAILED_PRECONDITION},
    {Code::kUnavailable, grpc::StatusCode::UNAVAILABLE},
    {Code::kDeadlineExceeded, grpc::StatusCode::DEADLINE_EXCEEDED},
    {Code::kResourceExhausted, grpc::StatusCode::RESOURCE_EXHAUSTED},
    {Code::kFenced, grpc::StatusCode::PERMISSION_DENIED},
    {Code::kAborted, grpc::StatusCode::ABORTED},
    {Code::kInternal, grpc::StatusCode::INTERNAL},
}};

}  // namespace

grpc::Status ToGrpcStatus(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  for (const auto& [code, grpc_code] : kCodes) {
    if (code == status.code()) return grpc::Status(grpc_code, status.message());
  }
  return grpc::Status(grpc::StatusCode::INTERNAL, status.ToString());
}

Status FromGrpcAnswer(const grpc::Status& status) {
  if (status.ok()) return Ok();
  for (const auto& [code, grpc_code] : kCodes) {
    if (grpc_code == status.error_code()) return Status(code, status.error_message());
  }
  return Status(Code::kInternal, status.error_message());
}

}  // namespace perdure
