#include "checkpoint/hash_lane.h"

#include <system_error>
#include <utility>

#include "checkpoint/hash.h"

namespace perdure {

HashLane::~HashLane() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    queue_.clear();
    changed_.NotifyAll();
  }
  thread_.Join();
}

void HashLane::Add(std::span<const std::byte> bytes, std::uint64_t* hash) {
  if (filling_bytes_ >= kBatchBytes || filling_.size() >= kBatchItemsMax) Pass();
  filling_.push_back({bytes, hash});
  filling_bytes_ += bytes.size();
}

void HashLane::Finish() {
  Hash(std::exchange(filling_, {}));
  filling_bytes_ = 0;
  MutexLock lock(mutex_);
  while (busy_ || !queue_.empty()) changed_.Wait(mutex_);
}

void HashLane::Pass() {
  Batch batch = std::exchange(filling_, {});
  filling_bytes_ = 0;
  if (!thread_.joinable() && !threadless_) {
    try {
      thread_ = Thread("ckpt-hash", [this] { Work(); });
    } catch (const std::system_error&) {
      threadless_ = true;
    }
  }
  if (threadless_) {
    Hash(batch);
    return;
  }
  MutexLock lock(mutex_);
  // The other side computes and waits for nothing, so this wait ends.
  while (queue_.size() >= kBatchesMax) changed_.Wait(mutex_);
  queue_.push_back(std::move(batch));
  changed_.NotifyAll();
}

void HashLane::Work() {
  for (;;) {
    Batch batch;
    {
      MutexLock lock(mutex_);
      busy_ = false;
      changed_.NotifyAll();
      while (queue_.empty() && !closing_) changed_.Wait(mutex_);
      if (closing_) return;
      batch = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
    }
    Hash(batch);
  }
}

void HashLane::Hash(const Batch& batch) {
  for (const Item& item : batch) *item.hash = Hash64(item.bytes);
}

}  // namespace perdure
