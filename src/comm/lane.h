// The one thread of a process (later: of a device) that issues collectives, in the order in which
// they were submitted. Everything that may block on a peer blocks here and nowhere else.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>

#include "base/mutex.h"
#include "base/thread.h"

namespace perdure {

// Operations waiting for their turn; a training step submits one per bucket.
inline constexpr std::size_t kLaneDepthMax = 512;

class LaneTask {
 public:
  virtual ~LaneTask() = default;
  // On the lane's thread.
  virtual void Run() = 0;
  // Who submitted it, for Lane::Drop.
  virtual const void* owner() const = 0;
};

class Lane {
 public:
  Lane();
  // Runs what is queued, then ends. Owners drop their tasks before.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // False when kLaneDepthMax tasks wait already. Any thread.
  bool Submit(std::shared_ptr<LaneTask> task);
  // For the few tasks of a communicator that fails: never refused.
  void SubmitAlways(std::shared_ptr<LaneTask> task);

  // Takes the owner's waiting tasks out of the queue and returns them; if one of its tasks is
  // running, returns when that has ended. Not from the lane's thread.
  std::deque<std::shared_ptr<LaneTask>> Drop(const void* owner);

 private:
  void Loop();

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<LaneTask>> queue_ PERDURE_GUARDED_BY(mutex_);
  const void* running_ PERDURE_GUARDED_BY(mutex_) = nullptr;
  bool closing_ PERDURE_GUARDED_BY(mutex_) = false;
  Thread thread_;  // last: it uses the members above
};

}  // namespace perdure
