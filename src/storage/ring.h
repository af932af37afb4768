// Several requests to the disk at once: submitted here, carried out by the kernel while the caller
// goes on, told of in whatever order they end. Which implementation is built is chosen by file:
// uring_ring.cc (io_uring by liburing) or no_uring.cc.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "perdure/clock.h"
#include "perdure/status.h"

namespace perdure {

class Ring {
 public:
  enum class Verb : std::uint8_t { kRead, kWrite, kSync };

  struct Request {
    Verb verb = Verb::kWrite;
    int fd = -1;
    std::int64_t offset = 0;
    // Belongs to the ring until the request's completion was returned. Empty for kSync.
    std::span<std::byte> bytes;
    std::uint64_t tag = 0;  // returned with the completion
  };

  struct Completion {
    std::uint64_t tag = 0;
    std::int64_t result = 0;  // bytes moved, which may be fewer than asked for, or -errno
  };

  virtual ~Ring() = default;
  // At most as many in flight as the ring was opened for. An error: the request is not in flight.
  virtual Status Submit(const Request& request) = 0;
  // The next one to end; kDeadlineExceeded when none did in time.
  virtual Result<Completion> Wait(Deadline deadline) = 0;
};

using RingOpener = std::function<Result<std::unique_ptr<Ring>>(unsigned depth)>;

// kUnimplemented: built without liburing. kFailedPrecondition or kUnavailable: the kernel has no
// io_uring or refuses it to this process, as the seccomp filters of most containers do.
Result<std::unique_ptr<Ring>> OpenUring(unsigned depth);

}  // namespace perdure
