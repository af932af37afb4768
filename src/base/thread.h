// A thread with a name and one owner, who joins it. It has no stop flag of its own: who gives it a
// loop also gives it the way out.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "perdure/clock.h"

namespace perdure {

// The name shows in debuggers and in /proc; the kernel keeps its first 15 bytes. All signals are
// blocked in the thread: they belong to the program's own threads.
class Thread {
 public:
  Thread() = default;
  Thread(const std::string& name, std::function<void()> body);
  ~Thread() { Join(); }
  Thread(Thread&&) = default;
  Thread& operator=(Thread&& other) noexcept {
    Join();
    thread_ = std::move(other.thread_);
    return *this;
  }

  bool joinable() const { return thread_.joinable(); }
  // Does nothing when there is nothing to join.
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::thread thread_;
};

// A thread that nobody joins, for calls that the kernel may never return from. `body` owns all that
// it touches. Throws nothing; false: the system gives no more threads.
bool StartUnjoined(const std::string& name, std::function<void()> body);

// For the few places that can only look again after a while. Prefer a wait that something ends.
void SleepFor(Duration duration);

}  // namespace perdure
