// Status and Result<T>: how every call of Perdure says that it failed. Nothing here throws.
//
// Codes are sorted by what the caller does next, so a training loop can branch on `code()` alone;
// the message is for people and always names the thing and, where there is one, the fix.
//
// A Status is a value: cheap when OK (one pointer), copied when it carries an error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "perdure/export.h"
#include "perdure/ids.h"

namespace perdure {

enum class Code : std::uint8_t {
  kOk = 0,

  // Fix the call, the configuration or the input; trying again changes nothing.
  kInvalidArgument,
  kNotFound,
  kAlreadyExists,
  kFailedPrecondition,
  kUnimplemented,

  // Try again, now or later; nothing is damaged.
  kUnavailable,
  kDeadlineExceeded,
  kResourceExhausted,

  // The communicator is broken: build the next one, or leave and let the supervisor restart.
  kCommFailed,

  // The data is not what was written: restore from an older checkpoint.
  kDataLoss,

  // Give up and leave.
  kFenced,     // a newer generation exists; this process must neither commit nor delete
  kPreempted,  // the machine is wanted back; a checkpoint has been taken if one was possible
  kAborted,    // told to stop by the supervisor, or aborted by the user
  kUserError,  // the training body failed or threw
  kInternal,   // a bug of ours
};

// "ok", "invalid_argument", … as logs and JSON show it.
PERDURE_API std::string_view NameOf(Code code);

// Why a collective failed. All survivors of one failure name the same suspects.
struct CommFailure {
  enum class Class : std::uint8_t {
    kPeerDead,        // a peer's process is gone
    kNotJoined,       // a peer has not called the operation
    kTimeout,         // all have joined, and it did not finish in time
    kMismatch,        // a peer called something else
    kOrderInversion,  // ranks wait for one another in a circle
    kAborted,         // aborted from this process
    kLocalError,      // this process could not take part
  };
  struct Suspect {
    Rank rank;
    std::string evidence;  // one sentence: "process exited with signal 9 (told by the supervisor)"
  };

  Class failure_class = Class::kLocalError;
  std::string communicator;
  std::uint64_t sequence = 0;    // number of the operation in its communicator, from 1
  std::string operation;         // "all_reduce f32 x 1048576"
  std::uint64_t bytes_done = 0;  // received of this operation when it failed
  std::vector<Suspect> suspects;
};

PERDURE_API std::string_view NameOf(CommFailure::Class failure_class);

class [[nodiscard]] PERDURE_API Status {
 public:
  Status() = default;  // OK
  Status(Code code, std::string message);
  Status(CommFailure failure, std::string message);  // kCommFailed

  Status(const Status& other);
  Status& operator=(const Status& other);
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;
  ~Status() = default;

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ == nullptr ? Code::kOk : rep_->code; }
  // Empty when OK.
  const std::string& message() const;
  // Set when code() is kCommFailed and the cause is known.
  const CommFailure* comm_failure() const;

  // The same error, said with what was being done: "writing shard 3: no space left on device".
  Status WithContext(std::string_view doing) const;

  // "ok", or "data_loss: …".
  std::string ToString() const;

 private:
  struct Rep {
    Code code;
    std::string message;
    std::optional<CommFailure> failure;
  };
  std::unique_ptr<Rep> rep_;
};

inline Status Ok() {
  return Status();
}

// Either a T or the Status that says why there is none. Reading the wrong one ends the process: it
// is a bug of the caller, not a fault of the world.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(Status status) : state_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (std::get<Status>(state_).ok()) {
      state_ = Status(Code::kInternal, "a Result was made from an OK status without a value");
    }
  }
  Result(T value) : state_(std::move(value)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(state_); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }

  T& value() & { return std::get<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<Status, T> state_;
};

}  // namespace perdure

#define PERDURE_CONCAT_INNER(a, b) a##b
#define PERDURE_CONCAT(a, b) PERDURE_CONCAT_INNER(a, b)

// Leaves the function with the Status of `expression` (a Status) when it is not OK.
#define PERDURE_RETURN_IF_ERROR(expression)                                    \
  do {                                                                         \
    if (::perdure::Status perdure_status = (expression); !perdure_status.ok()) \
      return perdure_status;                                                   \
  } while (false)

// `declaration` gets the value of `expression` (a Result), or the function is left with its Status.
#define PERDURE_ASSIGN_OR_RETURN(declaration, ...)                                       \
  PERDURE_ASSIGN_OR_RETURN_INNER(PERDURE_CONCAT(perdure_result_, __LINE__), declaration, \
                                 __VA_ARGS__)
#define PERDURE_ASSIGN_OR_RETURN_INNER(result, declaration, ...) \
  auto result = (__VA_ARGS__);                                   \
  if (!result.ok()) return result.status();                      \
  declaration = std::move(result).value()
