#include "control/store_server.h"

#include <fmt/format.h>

#include <utility>

#include "base/parse.h"

namespace perdure {
namespace {

// For messages: keys come from peers and may be long.
std::string_view Shown(std::string_view key) {
  return key.substr(0, 200);
}

Result<std::int64_t> ParseCounter(std::string_view key, std::string_view text) {
  const std::optional<std::int64_t> value = ParseInteger(text);
  if (!value.has_value()) {
    return Status(Code::kFailedPrecondition,
                  fmt::format("control store key {} holds '{}', which is not a counter", Shown(key),
                              text.substr(0, 40)));
  }
  return *value;
}

}  // namespace

Status StoreServer::Admit(Generation generation, std::string_view key,
                          std::size_t value_bytes) const {
  if (generation != generation_) {
    return Status(Code::kFenced,
                  fmt::format("the control store is of generation {}, the request of generation {}",
                              generation_.value(), generation.value()));
  }
  if (closed_) return Status(Code::kUnavailable, "the control store is closing");
  if (key.empty() || key.size() > kStoreKeyBytesMax) {
    return Status(Code::kInvalidArgument,
                  fmt::format("a control store key has 1 to {} bytes, this one has {}: '{}'",
                              kStoreKeyBytesMax, key.size(), Shown(key)));
  }
  if (value_bytes > kKeyValueBytesMax) {
    return Status(Code::kInvalidArgument,
                  fmt::format("the value for {} has {} bytes, more than the {} that the control "
                              "store takes",
                              Shown(key), value_bytes, kKeyValueBytesMax));
  }
  return Ok();
}

Result<StoreServer::Waiters> StoreServer::Store(std::string_view key, std::string_view value) {
  auto found = values_.find(key);
  const std::size_t before = found == values_.end() ? 0 : key.size() + found->second.size();
  const std::size_t after = bytes_ - before + key.size() + value.size();
  if (after > kStoreBytesMax || (found == values_.end() && values_.size() >= kStoreKeysMax)) {
    return Status(Code::kResourceExhausted,
                  fmt::format("the control store is full ({} keys, {} bytes): cannot take {}",
                              values_.size(), bytes_, Shown(key)));
  }
  bytes_ = after;
  if (found == values_.end()) {
    values_.emplace(key, value);
  } else {
    found->second.assign(value);
  }
  Waiters woken;
  if (auto waiting = waiters_.find(key); waiting != waiters_.end()) {
    woken = std::move(waiting->second);
    waiters_.erase(waiting);
    for (const auto& [id, on_value] : woken) waiting_key_.erase(id);
  }
  return woken;
}

Status StoreServer::Set(Generation generation, std::string_view key, std::string_view value) {
  Waiters woken;
  {
    MutexLock lock(mutex_);
    PERDURE_RETURN_IF_ERROR(Admit(generation, key, value.size()));
    PERDURE_ASSIGN_OR_RETURN(woken, Store(key, value));
  }
  for (auto& [id, on_value] : woken) on_value(std::string(value));
  return Ok();
}

Result<std::int64_t> StoreServer::Add(Generation generation, std::string_view key,
                                      std::int64_t amount, const std::string& operation_id) {
  Waiters woken;
  std::int64_t sum = 0;
  {
    MutexLock lock(mutex_);
    PERDURE_RETURN_IF_ERROR(Admit(generation, key, 0));
    if (auto done = done_operations_.find(operation_id); done != done_operations_.end()) {
      return done->second;
    }
    if (auto found = values_.find(key); found != values_.end()) {
      PERDURE_ASSIGN_OR_RETURN(sum, ParseCounter(key, found->second));
    }
    if (__builtin_add_overflow(sum, amount, &sum)) {
      return Status(Code::kInvalidArgument,
                    fmt::format("adding {} overflows the counter {}", amount, Shown(key)));
    }
    PERDURE_ASSIGN_OR_RETURN(woken, Store(key, std::to_string(sum)));
    if (!operation_id.empty()) {
      done_operations_.emplace(operation_id, sum);
      done_order_.push_back(operation_id);
      if (done_order_.size() > kStoreOperationsRememberedMax) {
        done_operations_.erase(done_order_.front());
        done_order_.pop_front();
      }
    }
  }
  for (auto& [id, on_value] : woken) on_value(std::to_string(sum));
  return sum;
}

Result<std::string> StoreServer::CompareAndSet(Generation generation, std::string_view key,
                                               std::string_view expected,
                                               std::string_view desired) {
  Waiters woken;
  {
    MutexLock lock(mutex_);
    PERDURE_RETURN_IF_ERROR(Admit(generation, key, desired.size()));
    const auto found = values_.find(key);
    const std::string_view held = found == values_.end() ? std::string_view() : found->second;
    if (held != expected) return std::string(held);
    PERDURE_ASSIGN_OR_RETURN(woken, Store(key, desired));
  }
  for (auto& [id, on_value] : woken) on_value(std::string(desired));
  return std::string(desired);
}

Status StoreServer::Forget(Generation generation, std::string_view prefix) {
  MutexLock lock(mutex_);
  PERDURE_RETURN_IF_ERROR(Admit(generation, prefix, 0));
  auto key = values_.lower_bound(prefix);
  while (key != values_.end() && key->first.compare(0, prefix.size(), prefix) == 0) {
    bytes_ -= key->first.size() + key->second.size();
    key = values_.erase(key);
  }
  return Ok();
}

StoreServer::WaiterId StoreServer::Get(Generation generation, std::string_view key,
                                       OnValue on_value) {
  Result<std::string> answer{std::string()};
  {
    MutexLock lock(mutex_);
    if (Status admitted = Admit(generation, key, 0); !admitted.ok()) {
      answer = std::move(admitted);
    } else if (const auto found = values_.find(key); found != values_.end()) {
      answer = found->second;
    } else if (waiting_key_.size() >= kStoreWaitersMax) {
      answer = Status(Code::kResourceExhausted,
                      fmt::format("{} gets are waiting in the control store already, one more for "
                                  "{} is refused",
                                  waiting_key_.size(), Shown(key)));
    } else {
      const WaiterId id = ++last_waiter_;
      waiting_key_.emplace(id, key);
      waiters_[std::string(key)].emplace(id, std::move(on_value));
      return id;
    }
  }
  on_value(std::move(answer));
  return 0;
}

bool StoreServer::Cancel(WaiterId waiter) {
  OnValue cancelled;  // destroyed without the lock: it may own anything
  MutexLock lock(mutex_);
  const auto found = waiting_key_.find(waiter);
  if (found == waiting_key_.end()) return false;
  const auto waiting = waiters_.find(found->second);
  const auto entry = waiting->second.find(waiter);
  cancelled = std::move(entry->second);
  waiting->second.erase(entry);
  if (waiting->second.empty()) waiters_.erase(waiting);
  waiting_key_.erase(found);
  return true;
}

void StoreServer::Close() {
  Waiters woken;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    for (auto& [key, waiters] : waiters_) woken.merge(waiters);
    waiters_.clear();
    waiting_key_.clear();
  }
  for (auto& [id, on_value] : woken) {
    on_value(Status(Code::kUnavailable, "the control store is closing"));
  }
}

std::size_t StoreServer::waiters() const {
  MutexLock lock(mutex_);
  return waiting_key_.size();
}

std::size_t StoreServer::keys() const {
  MutexLock lock(mutex_);
  return values_.size();
}

}  // namespace perdure
