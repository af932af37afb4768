#include "supervisor/shell/inbox.h"

#include <utility>

namespace perdure {

bool Inbox::TryPut(Incoming item) {
  MutexLock lock(mutex_);
  if (closed_ || items_.size() >= capacity_) return false;
  items_.push_back(std::move(item));
  changed_.NotifyAll();
  return true;
}

bool Inbox::Put(Incoming item, Deadline deadline) {
  MutexLock lock(mutex_);
  while (!closed_ && items_.size() >= capacity_) {
    if (!changed_.WaitUntil(mutex_, deadline)) break;
  }
  if (closed_ || items_.size() >= capacity_) return false;
  items_.push_back(std::move(item));
  changed_.NotifyAll();
  return true;
}

std::vector<Incoming> Inbox::Take(std::size_t most, Deadline deadline) {
  MutexLock lock(mutex_);
  while (!closed_ && items_.empty()) {
    if (!changed_.WaitUntil(mutex_, deadline)) break;
  }
  std::vector<Incoming> taken;
  while (!items_.empty() && taken.size() < most) {
    taken.push_back(std::move(items_.front()));
    items_.pop_front();
  }
  if (!taken.empty()) changed_.NotifyAll();
  return taken;
}

void Inbox::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  changed_.NotifyAll();
}

}  // namespace perdure
