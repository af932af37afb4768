#include "comm/backends/gloo/ring_plan.h"

#include <algorithm>

namespace perdure {
namespace {

// Pieces begin at cache lines, so that two threads never write to the same one.
constexpr std::size_t kAlignment = 64;

std::size_t RoundUp(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Segments of at most `most`, all but the last the same and aligned.
int SegmentsOf(std::size_t bytes, std::size_t most, std::size_t& segment_bytes) {
  const std::size_t count = std::max<std::size_t>(1, (bytes + most - 1) / most);
  segment_bytes = std::max(kAlignment, RoundUp((bytes + count - 1) / count, kAlignment));
  return static_cast<int>(std::max<std::size_t>(1, (bytes + segment_bytes - 1) / segment_bytes));
}

Slice Within(std::size_t begin, std::size_t end, std::size_t offset, std::size_t bytes) {
  const std::size_t from = std::min(begin + offset, end);
  return {from, std::min(bytes, end - from)};
}

}  // namespace

AllReducePlan::AllReducePlan(std::uint64_t count, std::size_t element_bytes, int size, int rank,
                             std::size_t segment_bytes_max)
    : bytes_(static_cast<std::size_t>(count) * element_bytes), size_(size), rank_(rank) {
  const auto ranks = static_cast<std::size_t>(size);
  chunk_bytes_ = RoundUp((bytes_ + ranks - 1) / ranks, kAlignment);
  segments_ = SegmentsOf(chunk_bytes_, segment_bytes_max, segment_bytes_);
}

Slice AllReducePlan::At(int chunk, int segment) const {
  const auto index = static_cast<std::size_t>((chunk % size_ + size_) % size_);
  const std::size_t begin = std::min(index * chunk_bytes_, bytes_);
  const std::size_t end = std::min(begin + chunk_bytes_, bytes_);
  return Within(begin, end, static_cast<std::size_t>(segment) * segment_bytes_, segment_bytes_);
}

Slice AllReducePlan::Sent(int message) const {
  const int step = message / segments_;
  const int chunk = step < size_ - 1 ? rank_ - step : rank_ + 1 - (step - (size_ - 1));
  return At(chunk, message % segments_);
}

Slice AllReducePlan::Received(int message) const {
  const int step = message / segments_;
  const int chunk = step < size_ - 1 ? rank_ - 1 - step : rank_ - (step - (size_ - 1));
  return At(chunk, message % segments_);
}

AllGatherPlan::AllGatherPlan(std::size_t bytes, int size, int rank, std::size_t segment_bytes_max)
    : bytes_(bytes), size_(size), rank_(rank) {
  segments_ = SegmentsOf(bytes, segment_bytes_max, segment_bytes_);
}

Slice AllGatherPlan::At(int block, int segment) const {
  const auto index = static_cast<std::size_t>((block % size_ + size_) % size_);
  return Within(index * bytes_, (index + 1) * bytes_,
                static_cast<std::size_t>(segment) * segment_bytes_, segment_bytes_);
}

Slice AllGatherPlan::Sent(int message) const {
  return At(rank_ - message / segments_, message % segments_);
}

Slice AllGatherPlan::Received(int message) const {
  return At(rank_ - 1 - message / segments_, message % segments_);
}

}  // namespace perdure
