// A bounded queue between threads. Full is an answer, closed is an answer.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "perdure/clock.h"

namespace perdure {

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) {}

  // False when full or closed; `value` is then untouched.
  bool TryPush(T&& value) {
    MutexLock lock(mutex_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(value));
    changed_.NotifyOne();
    return true;
  }

  // Waits for an item. Nothing: closed and drained, or the deadline passed.
  std::optional<T> Pop(Deadline deadline) {
    MutexLock lock(mutex_);
    while (items_.empty()) {
      if (closed_ || !changed_.WaitUntil(mutex_, deadline)) {
        if (items_.empty()) return std::nullopt;
      }
    }
    return TakeFront();
  }

  // The same, until closed.
  std::optional<T> Pop() {
    MutexLock lock(mutex_);
    while (items_.empty() && !closed_) changed_.Wait(mutex_);
    if (items_.empty()) return std::nullopt;
    return TakeFront();
  }

  // No more pushes; what is queued can still be popped.
  void Close() {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }

  bool closed() const {
    MutexLock lock(mutex_);
    return closed_;
  }

 private:
  T TakeFront() PERDURE_REQUIRES(mutex_) {
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

  const std::size_t capacity_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<T> items_ PERDURE_GUARDED_BY(mutex_);
  bool closed_ PERDURE_GUARDED_BY(mutex_) = false;
};

}  // namespace perdure
