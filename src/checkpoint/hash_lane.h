// Hashing on another core than the one that copies and writes, or reads: bytes that are added are
// hashed in order by a thread, behind the caller by at most kBatchesMax batches. Little work starts
// no thread and is done by Finish.
//
// Closing: the destructor drops what is not hashed yet, wakes the thread, and joins it; it is never
// further away than the end of one batch.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"

namespace perdure {

class HashLane {
 public:
  // A batch is closed at so many bytes or so many items, whichever comes first.
  static constexpr std::size_t kBatchBytes = std::size_t{4} << 20;
  static constexpr std::size_t kBatchItemsMax = 4096;
  static constexpr std::size_t kBatchesMax = 8;

  HashLane() = default;
  ~HashLane();
  HashLane(const HashLane&) = delete;
  HashLane& operator=(const HashLane&) = delete;

  // Puts the XXH3-64 of `bytes` into `*hash`. Both must stay where they are, and `bytes` as they
  // are, until Finish. Waits while kBatchesMax batches are under way.
  void Add(std::span<const std::byte> bytes, std::uint64_t* hash);
  // Returns when everything that was added is hashed. More may be added afterwards.
  void Finish();

 private:
  struct Item {
    std::span<const std::byte> bytes;
    std::uint64_t* hash = nullptr;
  };
  using Batch = std::vector<Item>;

  void Pass();
  void Work();
  static void Hash(const Batch& batch);

  // The caller's.
  Batch filling_;
  std::size_t filling_bytes_ = 0;
  bool threadless_ = false;  // the system gave none
  Thread thread_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Batch> queue_ PERDURE_GUARDED_BY(mutex_);
  bool busy_ PERDURE_GUARDED_BY(mutex_) = false;
  bool closing_ PERDURE_GUARDED_BY(mutex_) = false;
};

}  // namespace perdure
