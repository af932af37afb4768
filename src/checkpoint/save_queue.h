// Which saves are begun, captured and in flight on this rank: the training thread's side of
// saving, and the two threads behind it.
//
//   training thread  Begin: describes the state and copies what must be copied at once; Fence
//   "ckpt-capture"   copies the deferred pieces of the newest snapshot
//   "ckpt-saver"     one save at a time, oldest first, from the snapshot to the outcome (save.h)
//
// At most one snapshot is open, that is, not sealed yet: every call here that begins another one or
// waits passes the fence first. At most kInFlightMax saves are in flight.
//
// A save that is due while one is in flight (WhenBusy) must be treated alike by all ranks, although
// each sees the end of a save at another moment:
//   wait   every rank waits for its own; nothing is to be agreed on
//   queue  one more is captured and follows; a third waits. Nothing is to be agreed on
//   skip   rank 0 decides, and posts "skip" or "go" for the step; the others read it, before they
//          save, or before they wait
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"
#include "checkpoint/engine.h"
#include "checkpoint/exchange.h"
#include "checkpoint/fence.h"
#include "checkpoint/parts.h"
#include "checkpoint/save.h"
#include "checkpoint/snapshot.h"
#include "checkpoint/staging.h"
#include "device/device.h"
#include "perdure/clock.h"
#include "perdure/status.h"

namespace perdure {

class SaveQueue {
 public:
  static constexpr std::size_t kInFlightMax = 2;
  // What writing takes beside the copies, one save at a time: the blocks of a direct file, a slice
  // on its way through, a buffer for small pieces, the stacks of the threads.
  static constexpr std::int64_t kWriterBytes = std::int64_t{18} << 20;

  // All references outlive this.
  SaveQueue(const CheckpointOptions& options, Saver::Settings settings, Exchange& exchange,
            Files& files, Parts& parts, const Devices& devices, const CheckpointEvents& events);
  ~SaveQueue();

  // What restoring may use before Start.
  Staging& scratch() { return slots_[0]; }
  // The training thread, after the restore; the first step may follow.
  void Start(Lineage lineage);

  // ---- the training thread
  void BeginStep();
  // BeforeUpdate: what is captured of an earlier step is safe when it returns. An error, only with
  // verify_capture: the program has changed what was being captured.
  Status Fence();
  // The same where the program goes elsewhere; it says nothing about its discipline.
  void FinishCapture();
  // Before any save at this end. `updated` as in FenceRecord::EndStep.
  void EndStep(std::int64_t step, bool updated);
  // Captures and hands over. `may_skip`: a scheduled save, to which WhenBusy::kSkip applies.
  Status Begin(Step step, bool may_skip);
  // Drains until the deadline, then stops the threads. OK: the last save is durable.
  Status Close(Deadline deadline);

  // ---- any thread
  Status Wait(Deadline deadline);
  // An error ends the training: fenced, or too many saves failed in a row.
  Status Health() const;
  std::int64_t begun() const;  // saves that went to the saver
  Status last_outcome() const;
  std::int64_t last_committed_step() const;

 private:
  class Stall;
  struct Job {
    Job(Step of_step, MonotonicTime at, Deadline until)
        : step(of_step), begun(at), deadline(until) {}
    const Step step;
    const MonotonicTime begun;
    const Deadline deadline;
    int first_try = 0;
    bool ask_rank_0 = false;  // whether it is to be skipped
    Status captured;
    std::unique_ptr<Snapshot> snapshot;
    std::string foreign;  // what the program wrote itself
    std::size_t slot = 0;
  };

  Status PassFence(Deadline deadline);
  std::shared_ptr<Job> Capture(Step step, MonotonicTime begun);
  std::size_t TakeSlot(std::int64_t* staging_bytes);
  // Rank 0: whether this step is skipped, told to all. Others, only while busy: what rank 0 said.
  Result<bool> Skips(Step step);
  void NoteSkipped(Step step);
  bool WaitForRoom(std::size_t in_flight_max, Deadline deadline) PERDURE_REQUIRES(mutex_);
  void RunCapture();
  void RunSaver();
  void SaveOne(const Job& job);
  void Conclude(const Job& job, const SaveOutcome& outcome);

  const CheckpointOptions& options_;
  Exchange& exchange_;
  Files& files_;
  const Clock& clock_;
  const CheckpointEvents& events_;

  // The training thread.
  Parts& parts_;
  const Devices& devices_;
  std::thread::id training_thread_;
  FenceRecord fence_;
  std::shared_ptr<Job> open_;  // its snapshot is not sealed
  int stalls_ = 0;
  bool told_how_ = false;
  Step last_started_{-1};
  int tries_of_step_ = 0;

  // The training thread while a slot is free, its save's threads while not.
  std::array<Staging, kInFlightMax> slots_;
  CaptureStreams streams_;

  Saver saver_;  // the saver

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Job>> in_flight_ PERDURE_GUARDED_BY(mutex_);
  std::shared_ptr<Job> to_copy_ PERDURE_GUARDED_BY(mutex_);
  bool closing_ PERDURE_GUARDED_BY(mutex_) = false;
  bool closed_ PERDURE_GUARDED_BY(mutex_) = false;
  Status last_outcome_ PERDURE_GUARDED_BY(mutex_);
  Status fenced_ PERDURE_GUARDED_BY(mutex_);
  std::int64_t begun_ PERDURE_GUARDED_BY(mutex_) = 0;
  int failed_in_a_row_ PERDURE_GUARDED_BY(mutex_) = 0;
  std::int64_t skipped_ PERDURE_GUARDED_BY(mutex_) = 0;
  std::vector<Step> said_ PERDURE_GUARDED_BY(mutex_);  // rank 0: its words that are still posted
  std::int64_t last_committed_ PERDURE_GUARDED_BY(mutex_) = -1;

  // Last: they use the rest.
  Thread capture_thread_;
  Thread saver_thread_;
};

}  // namespace perdure
