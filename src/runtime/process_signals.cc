#include "runtime/process_signals.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

namespace perdure {
namespace {

// What a signal handler can reach is global by nature.
std::atomic<int> g_sigterm_pipe{-1};
struct sigaction g_previous;

void HandleSigterm(int) {
  const int saved_errno = errno;
  const int fd = g_sigterm_pipe.load();
  const char byte = 't';
  if (fd >= 0 && ::write(fd, &byte, 1) < 0) {
    // The pipe is full: a signal is already on its way to the thread.
  }
  errno = saved_errno;
}

std::atomic<bool> g_forked_child{false};

}  // namespace

Result<std::unique_ptr<SigtermWatch>> SigtermWatch::Install(std::function<void()> on_sigterm) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return ErrnoStatus(errno, "pipe for SIGTERM");
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  int expected = -1;
  if (!g_sigterm_pipe.compare_exchange_strong(expected, write_end.get())) {
    return Status(Code::kFailedPrecondition, "this process already has an open session");
  }
  // The thread waits for bytes; only the handler's end must not block.
  ::fcntl(read_end.get(), F_SETFL, 0);

  struct sigaction action {};
  action.sa_handler = HandleSigterm;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, &g_previous);
  return std::unique_ptr<SigtermWatch>(
      new SigtermWatch(std::move(read_end), std::move(write_end), std::move(on_sigterm)));
}

SigtermWatch::SigtermWatch(UniqueFd read_end, UniqueFd write_end, std::function<void()> on_sigterm)
    : read_end_(std::move(read_end)),
      write_end_(std::move(write_end)),
      thread_("perdure-sigterm", [fd = read_end_.get(), call = std::move(on_sigterm)] {
        char byte = 0;
        for (;;) {
          const ssize_t got = ::read(fd, &byte, 1);
          if (got < 0 && errno == EINTR) continue;
          if (got != 1 || byte == 'q') return;
          call();
        }
      }) {}

SigtermWatch::~SigtermWatch() {
  ::sigaction(SIGTERM, &g_previous, nullptr);
  g_sigterm_pipe = -1;
  const char quit = 'q';
  // The pipe holds 64 KiB: it is full only when 65536 signals wait, and then the thread is draining
  // it.
  while (::write(write_end_.get(), &quit, 1) < 0 && (errno == EINTR || errno == EAGAIN)) {
  }
  thread_.Join();
}

bool InForkedChild() {
  static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { g_forked_child.store(true); });
  (void)registered;
  return g_forked_child.load();
}

}  // namespace perdure
