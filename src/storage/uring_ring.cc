// Source: io_uring(7), io_uring_enter(2), and liburing's io_uring_wait_cqe_timeout(3).
#include <fmt/format.h>
#include <liburing.h>

#include <cerrno>

#include "base/posix.h"
#include "storage/ring.h"

namespace perdure {
namespace {

// Answers are taken when this side asks for them: nobody is interrupted for one.
constexpr unsigned kFlags = IORING_SETUP_COOP_TASKRUN;

class UringRing final : public Ring {
 public:
  ~UringRing() override {
    if (open_) ::io_uring_queue_exit(&ring_);
  }

  Status Open(unsigned depth) {
    int error = ::io_uring_queue_init(depth, &ring_, kFlags);
    if (error == -EINVAL) error = ::io_uring_queue_init(depth, &ring_, 0);  // before Linux 5.19
    if (error < 0) return ErrnoStatus(-error, "io_uring_setup");
    open_ = true;
    return Ok();
  }

  Status Submit(const Request& request) override {
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
    if (entry == nullptr) {
      return Status(Code::kResourceExhausted, "more requests than the ring was opened for");
    }
    const auto offset = static_cast<std::uint64_t>(request.offset);
    const auto length = static_cast<unsigned>(request.bytes.size());
    switch (request.verb) {
      case Verb::kRead:
        ::io_uring_prep_read(entry, request.fd, request.bytes.data(), length, offset);
        break;
      case Verb::kWrite:
        ::io_uring_prep_write(entry, request.fd, request.bytes.data(), length, offset);
        break;
      case Verb::kSync:
        ::io_uring_prep_fsync(entry, request.fd, 0);
        break;
    }
    ::io_uring_sqe_set_data64(entry, request.tag);
    for (;;) {
      const int submitted = ::io_uring_submit(&ring_);
      if (submitted >= 1) return Ok();
      // The entry stays queued: the kernel was interrupted or short of memory for a moment.
      if (submitted == -EINTR || submitted == -EAGAIN) continue;
      return ErrnoStatus(submitted < 0 ? -submitted : EIO, "io_uring_enter");
    }
  }

  Result<Completion> Wait(Deadline deadline) override {
    for (;;) {
      const Duration left = deadline.Remaining(RealClock().Now());
      __kernel_timespec timeout{};
      timeout.tv_sec = left.count() / 1'000'000'000;
      timeout.tv_nsec = left.count() % 1'000'000'000;
      io_uring_cqe* entry = nullptr;
      const int error = ::io_uring_wait_cqe_timeout(&ring_, &entry, &timeout);
      if (error == -EINTR || error == -EAGAIN) continue;
      if (error == -ETIME) {
        return Status(Code::kDeadlineExceeded, "the disk did not answer in time");
      }
      if (error < 0) return ErrnoStatus(-error, "io_uring_enter");
      const Completion completion{::io_uring_cqe_get_data64(entry), entry->res};
      ::io_uring_cqe_seen(&ring_, entry);
      return completion;
    }
  }

 private:
  io_uring ring_{};
  bool open_ = false;
};

}  // namespace

Result<std::unique_ptr<Ring>> OpenUring(unsigned depth) {
  auto ring = std::make_unique<UringRing>();
  PERDURE_RETURN_IF_ERROR(ring->Open(depth));
  return std::unique_ptr<Ring>(std::move(ring));
}

}  // namespace perdure
