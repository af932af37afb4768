#include "storage/io_lane.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/posix.h"

namespace perdure {
namespace {

constexpr std::uint64_t kSyncTag = UINT64_MAX;
// A request that the kernel hands back unserved is sent again, but not for ever.
constexpr int kResubmitsMax = 1000;

// Where rings go whose requests never came back: nobody may close them before the process ends.
// Held rather than lost, so that a tool that looks for leaks sees that it is meant so.
void KeepForGood(std::unique_ptr<Ring> ring) {
  static Mutex* const mutex = new Mutex;
  static auto* const kept = new std::vector<std::unique_ptr<Ring>>;
  MutexLock lock(*mutex);
  kept->push_back(std::move(ring));
}

}  // namespace

Result<std::unique_ptr<IoLane>> IoLane::Open(const RingOpener& open_ring, const LaneShape& shape,
                                             const Clock& clock) {
  PERDURE_ASSIGN_OR_RETURN(std::unique_ptr<Ring> ring, open_ring(shape.depth));
  void* const memory = ::mmap(nullptr, MemoryBytes(shape), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoStatus(errno, fmt::format("mapping {} bytes of buffers", MemoryBytes(shape)));
  }
  // Advice: the kernel then has a few large pages to pin for each request, not hundreds.
  static_cast<void>(::madvise(memory, MemoryBytes(shape), MADV_HUGEPAGE));
  return std::unique_ptr<IoLane>(
      new IoLane(shape, clock, std::move(ring), static_cast<std::byte*>(memory)));
}

IoLane::IoLane(const LaneShape& shape, const Clock& clock, std::unique_ptr<Ring> ring,
               std::byte* memory)
    : shape_(shape),
      clock_(clock),
      ring_(std::move(ring)),
      memory_(memory),
      blocks_(shape.depth + 1) {}

IoLane::~IoLane() {
  while (in_flight_ > 0 && given_up_.ok()) static_cast<void>(Wait().ok());
  if (in_flight_ > 0) {
    // The memory stays mapped for good: a request may still be under way to or from it.
    Log().error("giving up {} KiB of buffers that the disk did not give back",
                MemoryBytes(shape_) >> 10);
    KeepForGood(std::move(ring_));
    return;
  }
  ring_.reset();
  ::munmap(memory_, MemoryBytes(shape_));
}

std::span<std::byte> IoLane::memory(std::size_t block) {
  return {memory_ + block * shape_.block_bytes, shape_.block_bytes};
}

Status IoLane::Start(Ring::Verb verb, std::size_t block, int fd, std::int64_t offset,
                     std::size_t bytes) {
  PERDURE_RETURN_IF_ERROR(given_up_);
  Block& one = blocks_[block];
  PERDURE_CHECK(!full(), "no more than the ring was opened for");
  PERDURE_CHECK(!one.in_flight && bytes <= shape_.block_bytes, "an idle block, not overfilled");
  one.request = {verb, fd, offset, memory(block).first(bytes), block};
  one.outcome = {};
  one.resubmitted = 0;
  if (const Status sent = ring_->Submit(one.request); !sent.ok()) return GiveUp(sent);
  one.in_flight = true;
  ++in_flight_;
  return Ok();
}

Result<std::size_t> IoLane::Wait() {
  for (;;) {
    PERDURE_ASSIGN_OR_RETURN(const Ring::Completion completion, NextCompletion());
    PERDURE_CHECK(completion.tag < blocks_.size() && blocks_[completion.tag].in_flight,
                  "only what was started comes back");
    const auto index = static_cast<std::size_t>(completion.tag);
    Block& block = blocks_[index];
    const bool again = completion.result == -EINTR || completion.result == -EAGAIN;
    if (again && block.resubmitted < kResubmitsMax) {
      ++block.resubmitted;
      if (const Status sent = ring_->Submit(block.request); !sent.ok()) return GiveUp(sent);
      continue;
    }
    block.in_flight = false;
    --in_flight_;
    if (completion.result < 0) {
      block.outcome = {0, static_cast<int>(-completion.result)};
    } else {
      block.outcome = {static_cast<std::size_t>(completion.result), 0};
    }
    return index;
  }
}

Result<int> IoLane::Sync(int fd) {
  PERDURE_RETURN_IF_ERROR(given_up_);
  PERDURE_CHECK(in_flight_ == 0, "what is not written yet cannot be synced");
  const Status sent = ring_->Submit({Ring::Verb::kSync, fd, 0, {}, kSyncTag});
  if (!sent.ok()) return GiveUp(sent);
  PERDURE_ASSIGN_OR_RETURN(const Ring::Completion completion, NextCompletion());
  return completion.result < 0 ? static_cast<int>(-completion.result) : 0;
}

Result<Ring::Completion> IoLane::NextCompletion() {
  PERDURE_RETURN_IF_ERROR(given_up_);
  Result<Ring::Completion> completion = ring_->Wait(Deadline::After(shape_.stall_max, clock_));
  if (completion.ok()) return completion;
  if (completion.status().code() != Code::kDeadlineExceeded) return GiveUp(completion.status());
  return GiveUp(Status(
      Code::kUnavailable,
      fmt::format("nothing came back from the disk for {:.0f} s", Seconds(shape_.stall_max))));
}

Status IoLane::GiveUp(const Status& why) {
  given_up_ = why;
  return why;
}

}  // namespace perdure
