#include "comm/lane.h"

#include <utility>

namespace perdure {

Lane::Lane() : thread_("perdure-comm", [this] { Loop(); }) {}

Lane::~Lane() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    changed_.NotifyAll();
  }
  thread_.Join();
}

bool Lane::Submit(std::shared_ptr<LaneTask> task) {
  MutexLock lock(mutex_);
  if (closing_ || queue_.size() >= kLaneDepthMax) return false;
  queue_.push_back(std::move(task));
  changed_.NotifyAll();
  return true;
}

void Lane::SubmitAlways(std::shared_ptr<LaneTask> task) {
  MutexLock lock(mutex_);
  queue_.push_back(std::move(task));
  changed_.NotifyAll();
}

std::deque<std::shared_ptr<LaneTask>> Lane::Drop(const void* owner) {
  std::deque<std::shared_ptr<LaneTask>> dropped;
  MutexLock lock(mutex_);
  std::deque<std::shared_ptr<LaneTask>> kept;
  for (auto& task : queue_) {
    (task->owner() == owner ? dropped : kept).push_back(std::move(task));
  }
  queue_ = std::move(kept);
  while (running_ == owner) changed_.Wait(mutex_);
  return dropped;
}

void Lane::Loop() {
  for (;;) {
    std::shared_ptr<LaneTask> task;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !closing_) changed_.Wait(mutex_);
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
      running_ = task->owner();
    }
    task->Run();
    task.reset();
    MutexLock lock(mutex_);
    running_ = nullptr;
    changed_.NotifyAll();
  }
}

}  // namespace perdure
