// The state of one step on its way out of the program's memory.
//
// Protocol:
//  1 End (training thread): it is decided which piece is copied when (capture_plan.h); what may
//    change at any time is copied, the rest stays where it is
//  2 behind the next forward and backward: the capture thread copies the deferred pieces (or queues
//    the copies on their device), the saver writes the streamed ones; each takes bytes only while
//    the snapshot is not given up
//  3 BeforeUpdate (training thread), the fence: waits until both have finished, makes what the
//    program queues next on a device come after the copies there, then seals. Sealed
//    means: the program had no occasion to change what was captured. Only what is sealed is
//    reported to rank 0, so only that is ever committed
//  or the program went on without the fence: the snapshot is given up, with the reason, and the
//  save fails on all ranks. What was copied then could be a mixture of two steps.
//
// With `verify` the deferred pieces are hashed in step 1, again as copied, and once more in place
// at the fence: a program that changed them in between is told which tensor it was.
//
// Threads: each member says whose it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "checkpoint/capture_plan.h"
#include "checkpoint/parts.h"
#include "checkpoint/staging.h"
#include "device/copy_streams.h"
#include "device/device.h"
#include "perdure/clock.h"
#include "perdure/status.h"

namespace perdure {

// The streams of those who copy, kept from one save to the next.
struct CaptureStreams {
  explicit CaptureStreams(const Devices& devices)
      : training(devices), capture(devices), saver(devices) {}
  CopyStreams training;
  CopyStreams capture;
  CopyStreams saver;
};

class Snapshot {
 public:
  struct Options {
    bool may_defer = false;
    bool verify = false;
    std::int64_t staging_bytes = 0;
    Deadline deadline;  // of every wait for a device
  };

  // The training thread: step 1. `memory` and `streams` outlive this. An error names the entry.
  static Result<std::unique_ptr<Snapshot>> Take(LocalState state, const Options& options,
                                                Staging& memory, const Devices& devices,
                                                CaptureStreams& streams);
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  const Structure& structure() const { return state_.structure; }
  const CapturePlan& plan() const { return plan_; }
  bool streams_any() const { return plan_.streamed_bytes > 0; }

  // The capture thread: step 2. Ends early when the snapshot is given up.
  void CopyDeferred();

  // ---- the saver
  // Until the staged pieces are there; the error when they never will be.
  Status WaitStaged(Deadline deadline);
  // The piece's packed bytes, unless it is streamed. After WaitStaged.
  std::optional<std::span<const std::byte>> BytesOf(std::size_t piece) const;
  // Bytes of a streamed piece, from where it lies.
  Status Read(std::size_t piece, std::int64_t offset, std::span<std::byte> packed);
  // XXH3-128 of all the piece's bytes. Streamed pieces are read for it.
  Result<std::string> DigestOf(std::size_t piece);
  // The same of a part of it, a box in the global tensor, packed.
  Result<std::string> DigestOf(std::size_t piece, const Box& part);
  // No more Read and DigestOf of streamed pieces.
  void EndStreaming();
  // Until the snapshot is sealed; the error when it was given up.
  Status WaitSealed(Deadline deadline);
  // Nobody copies any more; the memory may be used again. Any error is in WaitStaged.
  void WaitCopier();

  // ---- the training thread
  // Whether nothing of it lies in the program's memory only.
  bool captured() const;
  // False when the deadline passed first.
  bool WaitCaptured(Deadline deadline);
  // After WaitCaptured: the fence was passed. With `verify` an error that names the first tensor
  // that is not what it was at the end of its step; the snapshot is then given up.
  Status Seal();
  // The program went on without the fence, or the save is over. Returns once nobody reads the
  // program's memory any more.
  void GiveUp(const Status& why);

 private:
  Snapshot(LocalState state, CapturePlan plan, const Options& options, Staging& memory,
           CaptureStreams& streams)
      : state_(std::move(state)),
        plan_(std::move(plan)),
        options_(options),
        memory_(memory),
        streams_(streams) {}

  // Holds GiveUp back while bytes are taken out of the program's memory.
  class Reading;

  Status CopyPiece(std::size_t piece, CopyStreams& streams, bool guarded);
  // A hash of a piece where it lies.
  Result<std::uint64_t> HashInPlace(std::size_t piece, CopyStreams& streams);
  Status Changed(std::size_t piece) const;
  // Copies on a device need only be queued: the device makes the program's later work wait for
  // them.
  bool captured_locked() const PERDURE_REQUIRES(mutex_) {
    return !failed_.ok() || (queued_ && streamed_);
  }

  const LocalState state_;
  const CapturePlan plan_;
  const Options options_;
  Staging& memory_;
  CaptureStreams& streams_;
  std::map<std::size_t, std::uint64_t> before_;  // hashes of step 1, with verify; constant after it

  mutable Mutex mutex_;
  CondVar changed_;
  Status failed_ PERDURE_GUARDED_BY(mutex_);
  Status broken_ PERDURE_GUARDED_BY(mutex_);  // verify: which tensor was changed
  bool queued_ PERDURE_GUARDED_BY(mutex_) = false;
  CopyStreams::Points points_ PERDURE_GUARDED_BY(mutex_);  // of what is queued
  bool staged_ PERDURE_GUARDED_BY(mutex_) = false;
  bool streamed_ PERDURE_GUARDED_BY(mutex_) = false;
  bool sealed_ PERDURE_GUARDED_BY(mutex_) = false;
  bool copier_done_ PERDURE_GUARDED_BY(mutex_) = false;
  int reading_ PERDURE_GUARDED_BY(mutex_) = 0;
};

}  // namespace perdure
