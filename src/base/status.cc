#include "perdure/status.h"

#include <fmt/format.h>

#include "base/check.h"

namespace perdure {

std::string_view NameOf(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kNotFound:
      return "not_found";
    case Code::kAlreadyExists:
      return "already_exists";
    case Code::kFailedPrecondition:
      return "failed_precondition";
    case Code::kUnimplemented:
      return "unimplemented";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kDeadlineExceeded:
      return "deadline_exceeded";
    case Code::kResourceExhausted:
      return "resource_exhausted";
    case Code::kCommFailed:
      return "comm_failed";
    case Code::kDataLoss:
      return "data_loss";
    case Code::kFenced:
      return "fenced";
    case Code::kPreempted:
      return "preempted";
    case Code::kAborted:
      return "aborted";
    case Code::kUserError:
      return "user_error";
    case Code::kInternal:
      return "internal";
  }
  return "unknown";
}

std::string_view NameOf(CommFailure::Class failure_class) {
  switch (failure_class) {
    case CommFailure::Class::kPeerDead:
      return "peer_dead";
    case CommFailure::Class::kNotJoined:
      return "not_joined";
    case CommFailure::Class::kTimeout:
      return "timeout";
    case CommFailure::Class::kMismatch:
      return "mismatch";
    case CommFailure::Class::kOrderInversion:
      return "order_inversion";
    case CommFailure::Class::kAborted:
      return "aborted";
    case CommFailure::Class::kLocalError:
      return "local_error";
  }
  return "unknown";
}

Status::Status(Code code, std::string message) {
  PERDURE_CHECK(code != Code::kOk, "an error Status needs an error code");
  rep_ = std::make_unique<Rep>(Rep{code, std::move(message), std::nullopt});
}

Status::Status(CommFailure failure, std::string message)
    : rep_(std::make_unique<Rep>(Rep{Code::kCommFailed, std::move(message), std::move(failure)})) {}

Status::Status(const Status& other)
    : rep_(other.rep_ == nullptr ? nullptr : std::make_unique<Rep>(*other.rep_)) {}

Status& Status::operator=(const Status& other) {
  if (this != &other) rep_ = other.rep_ == nullptr ? nullptr : std::make_unique<Rep>(*other.rep_);
  return *this;
}

const std::string& Status::message() const {
  static const std::string* const empty = new std::string;  // threads that outlive main may ask
  return rep_ == nullptr ? *empty : rep_->message;
}

const CommFailure* Status::comm_failure() const {
  return rep_ == nullptr || !rep_->failure.has_value() ? nullptr : &*rep_->failure;
}

Status Status::WithContext(std::string_view doing) const {
  if (ok()) return Status();
  Status with_context = *this;
  with_context.rep_->message = fmt::format("{}: {}", doing, message());
  return with_context;
}

std::string Status::ToString() const {
  return ok() ? "ok" : fmt::format("{}: {}", NameOf(code()), message());
}

}  // namespace perdure
