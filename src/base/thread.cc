#include "base/thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

namespace perdure {

namespace {

// All signals blocked for its lifetime: a thread started under it never runs with them open.
class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

Thread::Thread(const std::string& name, std::function<void()> body) {
  const BlockSignals block;
  thread_ = std::thread(std::move(body));
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

bool StartUnjoined(const std::string& name, std::function<void()> body) {
  const BlockSignals block;
  try {
    std::thread([name = name.substr(0, 15), body = std::move(body)] {
      pthread_setname_np(pthread_self(), name.c_str());
      body();
    }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

void SleepFor(Duration duration) {
  std::this_thread::sleep_for(duration);
}

}  // namespace perdure
