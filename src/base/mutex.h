// A mutex that clang can check: members carry PERDURE_GUARDED_BY(mutex_), and -Wthread-safety says
// where the lock is missing. The annotations mean nothing to gcc.
#pragma once

#include <condition_variable>
#include <mutex>

#include "perdure/clock.h"

#if defined(__clang__)
#define PERDURE_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define PERDURE_THREAD_ANNOTATION(x)
#endif
#define PERDURE_CAPABILITY(x) PERDURE_THREAD_ANNOTATION(capability(x))
#define PERDURE_SCOPED_CAPABILITY PERDURE_THREAD_ANNOTATION(scoped_lockable)
#define PERDURE_GUARDED_BY(x) PERDURE_THREAD_ANNOTATION(guarded_by(x))
#define PERDURE_REQUIRES(...) PERDURE_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define PERDURE_EXCLUDES(...) PERDURE_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define PERDURE_ACQUIRE(...) PERDURE_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define PERDURE_RELEASE(...) PERDURE_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define PERDURE_NO_THREAD_SAFETY_ANALYSIS PERDURE_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace perdure {

class PERDURE_CAPABILITY("mutex") Mutex {
 public:
  void Lock() PERDURE_ACQUIRE() { mutex_.lock(); }
  void Unlock() PERDURE_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class PERDURE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) PERDURE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() PERDURE_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  // Like std::condition_variable: wakes spuriously, so wait in a loop over the condition.
  void Wait(Mutex& mutex) PERDURE_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  // False when the deadline has passed.
  bool WaitUntil(Mutex& mutex, Deadline deadline) PERDURE_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = condition_.wait_until(lock, deadline.at()) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }

  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace perdure
