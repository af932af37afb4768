// The memory and the ring behind one file that is read or written past the page cache: a few
// aligned blocks, each idle, being filled or emptied by its owner, or in flight. There is one more
// than may be in flight, so that the disk has its fill while the owner copies.
//
// Closing. The blocks belong to the kernel while they are in flight, so a lane is taken down only
// when all came back. Should the disk not answer for `stall_max`, ring and memory are given up
// instead (never freed, so that a late answer hits nothing), and nobody waits for them again.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "perdure/clock.h"
#include "perdure/status.h"
#include "storage/ring.h"

namespace perdure {

struct LaneShape {
  std::size_t block_bytes = std::size_t{1} << 20;  // a multiple of 4096
  unsigned depth = 8;                              // requests in flight
  // Without any answer for so long, the disk is given up. As long as a whole save may take.
  Duration stall_max = std::chrono::seconds(300);
};

class IoLane {
 public:
  // What became of a request. A short one without an error is for the owner to go on with.
  struct Outcome {
    std::size_t done = 0;
    int error = 0;  // errno
  };

  static Result<std::unique_ptr<IoLane>> Open(const RingOpener& open_ring, const LaneShape& shape,
                                              const Clock& clock);
  ~IoLane();

  std::size_t blocks() const { return blocks_.size(); }
  // The memory of a block, aligned to pages.
  std::span<std::byte> memory(std::size_t block);
  bool in_flight(std::size_t block) const { return blocks_[block].in_flight; }
  std::size_t count_in_flight() const { return in_flight_; }
  bool full() const { return in_flight_ == shape_.depth; }

  // Sends the first `bytes` of an idle block on its way; the lane is not full. An error: the ring
  // is broken.
  Status Start(Ring::Verb verb, std::size_t block, int fd, std::int64_t offset, std::size_t bytes);
  // Waits for one block to come back and says which. An error: nothing came back in time, or the
  // ring is broken; the lane is then given up, and every later call fails likewise.
  Result<std::size_t> Wait();
  // What the block's last request came to. It is not in flight.
  Outcome outcome(std::size_t block) const { return blocks_[block].outcome; }
  // fsync, with the same bound; nothing may be in flight. The error is its errno.
  Result<int> Sync(int fd);

 private:
  struct Block {
    bool in_flight = false;
    Ring::Request request;
    Outcome outcome;
    int resubmitted = 0;
  };

  IoLane(const LaneShape& shape, const Clock& clock, std::unique_ptr<Ring> ring, std::byte* memory);
  Result<Ring::Completion> NextCompletion();
  Status GiveUp(const Status& why);
  static std::size_t MemoryBytes(const LaneShape& shape) {
    return shape.block_bytes * (shape.depth + 1);
  }

  const LaneShape shape_;
  const Clock& clock_;
  std::unique_ptr<Ring> ring_;
  std::byte* memory_;
  std::vector<Block> blocks_;
  std::size_t in_flight_ = 0;
  Status given_up_;
};

}  // namespace perdure
