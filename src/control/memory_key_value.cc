#include "control/memory_key_value.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace perdure {

MemoryKeyValue::~MemoryKeyValue() {
  Close();
  MutexLock lock(mutex_);
  while (waiting_ > 0) changed_.Wait(mutex_);
}

Status MemoryKeyValue::Open() {
  MutexLock lock(mutex_);
  if (closed_) return Status(Code::kAborted, "the connection to the control store was closed");
  return Ok();
}

Status MemoryKeyValue::Set(std::string_view key, std::string_view value, Deadline /*deadline*/) {
  PERDURE_RETURN_IF_ERROR(Open());
  return store_.Set(generation_, key, value);
}

Result<std::string> MemoryKeyValue::Get(std::string_view key, Deadline deadline) {
  PERDURE_RETURN_IF_ERROR(Open());
  std::optional<Result<std::string>> answer;  // under mutex_
  {
    MutexLock lock(mutex_);
    ++waiting_;
  }
  const StoreServer::WaiterId waiter =
      store_.Get(generation_, key, [this, &answer](Result<std::string> value) {
        MutexLock lock(mutex_);
        answer = std::move(value);
        changed_.NotifyAll();
      });
  MutexLock lock(mutex_);
  bool in_time = true;
  while (!answer.has_value() && !closed_ && in_time) {
    in_time = changed_.WaitUntil(mutex_, deadline);
  }
  if (!answer.has_value()) {
    mutex_.Unlock();
    const bool cancelled = store_.Cancel(waiter);
    mutex_.Lock();
    if (cancelled) {
      answer = closed_ ? Status(Code::kAborted, "the connection to the control store was closed")
                       : Status(Code::kDeadlineExceeded,
                                fmt::format("control store key {} was not set in time", key));
    }
    // Not cancelled: the value is on its way from another thread.
    while (!answer.has_value()) changed_.Wait(mutex_);
  }
  --waiting_;
  changed_.NotifyAll();
  return *std::move(answer);
}

Result<std::int64_t> MemoryKeyValue::Add(std::string_view key, std::int64_t amount,
                                         Deadline /*deadline*/) {
  PERDURE_RETURN_IF_ERROR(Open());
  return store_.Add(generation_, key, amount, "");
}

Result<std::string> MemoryKeyValue::CompareAndSet(std::string_view key, std::string_view expected,
                                                  std::string_view desired, Deadline /*deadline*/) {
  PERDURE_RETURN_IF_ERROR(Open());
  return store_.CompareAndSet(generation_, key, expected, desired);
}

Status MemoryKeyValue::Forget(std::string_view prefix, Deadline /*deadline*/) {
  PERDURE_RETURN_IF_ERROR(Open());
  return store_.Forget(generation_, prefix);
}

void MemoryKeyValue::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  changed_.NotifyAll();
}

}  // namespace perdure
