// Who sends which bytes when, in a ring. Pure.
//
// All-reduce (P ranks): the tensor is cut into P chunks, each chunk into segments. In the first
// P - 1 steps every rank sends a chunk to the right, receives another from the left and adds it to
// its own, so that after them each rank holds one chunk complete; in the next P - 1 steps the
// complete chunks travel around. Message m of a rank carries segment m mod S of step m / S, and may
// be sent when the message S places before it was received.
// Source: Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations,
// J. Parallel Distrib. Comput. 69 (2009).
#pragma once

#include <cstddef>
#include <cstdint>

namespace perdure {

struct Slice {
  std::size_t offset = 0;
  std::size_t bytes = 0;  // may be 0: then nothing is sent
  friend bool operator==(const Slice&, const Slice&) = default;
};

class AllReducePlan {
 public:
  AllReducePlan(std::uint64_t count, std::size_t element_bytes, int size, int rank,
                std::size_t segment_bytes_max);

  int segments() const { return segments_; }  // of a chunk
  int messages() const { return 2 * (size_ - 1) * segments_; }
  std::size_t segment_bytes() const { return segment_bytes_; }
  Slice Sent(int message) const;
  Slice Received(int message) const;
  // The received slice is added, not stored.
  bool Reduces(int message) const { return message < (size_ - 1) * segments_; }
  // The slice is complete once it was added: every rank's part is in it.
  bool Completes(int message) const {
    return Reduces(message) && message >= (size_ - 2) * segments_;
  }

 private:
  Slice At(int chunk, int segment) const;

  const std::size_t bytes_;
  const int size_;
  const int rank_;
  int segments_ = 1;
  std::size_t segment_bytes_ = 0;
  std::size_t chunk_bytes_ = 0;
};

// All-gather: P blocks of `bytes`, one of each rank. In each of P - 1 steps a rank passes on what
// it received in the step before.
class AllGatherPlan {
 public:
  AllGatherPlan(std::size_t bytes, int size, int rank, std::size_t segment_bytes_max);

  int segments() const { return segments_; }
  int messages() const { return (size_ - 1) * segments_; }
  Slice Sent(int message) const;
  Slice Received(int message) const;

 private:
  Slice At(int block, int segment) const;

  const std::size_t bytes_;
  const int size_;
  const int rank_;
  int segments_ = 1;
  std::size_t segment_bytes_ = 0;
};

}  // namespace perdure
