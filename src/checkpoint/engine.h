// The checkpoint engine of one rank: everything between "this is my state" and "it is durable, on
// all ranks or on none". The session owns one per generation.
//
// Life: Claim (rank 0) → Open → Add … → Restore → for each step BeginStep, BeforeUpdate, EndStep →
// Close. Ranks speak only through the CommitGroup, from background threads, never through
// collectives.
//
// Threads: Add, Restore, Save, BeginStep, BeforeUpdate and EndStep belong to the training thread;
// everything else may be called from any thread. Callbacks come from the engine's own threads,
// except on_stall, which comes from the training thread; they must not call back into the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/commit_group.h"
#include "checkpoint/init_from.h"
#include "checkpoint/interval.h"
#include "device/device.h"
#include "perdure/checkpoint.h"
#include "perdure/clock.h"
#include "perdure/ids.h"
#include "perdure/status.h"
#include "storage/files.h"

namespace perdure {

// What a generation is to restore.
struct RestoreRules {
  enum class Resume : std::uint8_t {
    kAuto,     // the newest good checkpoint; a fresh start only if nothing was ever committed here
    kRequire,  // the newest good checkpoint, or an error
    kNever,    // a fresh start; what is there stays, off the new lineage
  };
  Resume resume = Resume::kAuto;
  std::vector<std::string> avoid;         // directory names not to be tried
  std::vector<SampleRange> skip_samples;  // written into this generation's fork
  std::string reason;                     // why this generation exists
};

// What becomes of a scheduled save that is due while the one before is still being written. One
// that was asked for waits, always.
enum class WhenBusy : std::uint8_t {
  kWait,   // the training waits: no checkpoint is lost
  kSkip,   // none is taken; counted and told. The training never waits for a disk
  kQueue,  // one more is captured and written afterwards, if staging has room for it
};

// In debug builds a program that does not keep still what is being captured is caught.
#ifdef NDEBUG
inline constexpr bool kVerifyCaptureByDefault = false;
#else
inline constexpr bool kVerifyCaptureByDefault = true;
#endif

struct CheckpointOptions {
  std::string root;  // the checkpoint directory
  std::string job;
  std::int64_t interval_steps = 0;    // a save after every so many steps; 0: only on request, or:
  IntervalPolicy interval;            // chosen from what is measured; interval_steps is 0 then
  InterruptionHistory history;        // what `interval` knows of the past
  int keep_last_n = 3;                // at least 2
  std::int64_t keep_every_steps = 0;  // also the first at or after each multiple; 0: none
  bool async_save = true;             // false: EndStep and Save return when the save is durable
  WhenBusy when_busy = WhenBusy::kWait;
  bool deferred_capture = true;  // copy behind the next step, for programs that call BeforeUpdate
  // Bytes of host memory that saves may take beside the state: for copies of it and, from 36 MiB
  // on, for the buffers of writing. What does not fit is written slice by slice, the fence waiting
  // for it. 0: one copy of the state (kQueue: two), and the buffers.
  std::int64_t staging_bytes_max = 0;
  // Hash what is captured before, as copied and at the fence; names the tensor that was changed.
  bool verify_capture = kVerifyCaptureByDefault;
  int stop_after = 3;  // failed saves in a row that end the training; 0: never
  RestoreRules restore;
  // For a fresh start; a resume wins.
  InitFrom init_from;
  Duration checkpoint_deadline = std::chrono::seconds(300);  // one save, its retry included
  Duration restore_deadline = std::chrono::seconds(900);
  Duration preemption_grace = std::chrono::seconds(120);  // for a save that was asked to leave
};

// On every rank; bytes are those of the whole checkpoint.
struct CheckpointCommit {
  Step step;
  Generation generation;
  std::string attempt;
  std::string checkpoint;  // directory name
  std::int64_t bytes = 0;
  double seconds = 0;      // capture to durable
  double age_seconds = 0;  // since the step it holds ended
};

struct CheckpointFailure {
  Step step;
  std::string reason;
  int in_a_row = 1;
};

struct CheckpointSkip {
  Step step;
  std::string reason;
  std::int64_t skipped = 1;  // so far, in this generation
};

struct CheckpointEvents {
  std::function<void(const CheckpointCommit&)> on_committed;
  std::function<void(const CheckpointFailure&)> on_failed;
  std::function<void(const CheckpointSkip&)> on_skipped;
  // The training thread begins (true) or ends (false) to stand still for a save.
  std::function<void(bool)> on_stall;
};

class CheckpointEngine final : public Checkpointer {
 public:
  // Rank 0 takes the generation's number on the root, which it makes when it is missing, before
  // anything is listed. kFenced: this number or a higher one is taken.
  static Status Claim(Files& files, const std::string& root, const std::string& job,
                      Generation generation, const Clock& clock);
  // Without a supervisor: the next free number, at least `at_least`.
  static Result<Generation> ClaimNext(Files& files, const std::string& root, const std::string& job,
                                      Generation at_least, const Clock& clock);

  // Every rank, after rank 0 has claimed. Fails on all ranks when one of them does not see the same
  // root (a missing mount), naming it. `group`, `files` and `clock` outlive the engine, and so do
  // `devices`, where the state may lie; none: CPU memory.
  static Result<std::unique_ptr<CheckpointEngine>> Open(CheckpointOptions options,
                                                        CommitGroup& group, Files& files,
                                                        const Clock& clock, CheckpointEvents events,
                                                        Deadline deadline,
                                                        const Devices* devices = nullptr);
  // Stops the threads without draining; what was in flight is not durable. Close first.
  ~CheckpointEngine() override;
  CheckpointEngine(const CheckpointEngine&) = delete;
  CheckpointEngine& operator=(const CheckpointEngine&) = delete;

  // ---- Checkpointer
  void Add(std::string name, std::unique_ptr<Stateful> part) override;
  void Add(std::string name, Stateful& part) override;
  void AddWriter(std::string name, std::function<Status(const std::string&)> write,
                 std::function<Status(const std::string&)> read,
                 WorldChange on_world_change = WorldChange::kError) override;
  Result<RestoreReport> Restore() override;
  Status Save(std::int64_t step) override;
  Status Wait(Deadline deadline) override;
  std::int64_t last_committed_step() const override;

  // ---- the session's side of a step
  void BeginStep(std::int64_t step);
  // The fence before the update: a save in flight has captured. An error only with verify_capture:
  // the program has changed a tensor before it.
  Status BeforeUpdate();
  // The same for a program that goes elsewhere: a step is left without its end, or a phase begins
  // between steps.
  void FinishCapture();
  // After the update of `step`; `updated` false: the program says that it made none. Starts the
  // save that is due after it (when it is a multiple of the interval, but not step 0), joins one
  // that was agreed on, also because a chosen interval is over (pacer.h). kPreempted: leave now;
  // the message says whether a checkpoint is durable. Another error: `stop_after` saves failed in a
  // row, or the agreement on a requested save broke.
  Status EndStep(std::int64_t step, bool updated = true);

  // One coordinated save at the next step that all ranks can still reach; `then_leave` makes
  // EndStep return kPreempted on all ranks once it is durable. Returns at once; what becomes of it
  // is told by EndStep and the events. Before Restore it waits for it.
  void RequestSave(std::string reason, bool then_leave);

  // The training loop is over: ends the part in agreements, drains what is in flight until the
  // deadline, ends the threads. OK: everything that was asked for is durable. Idempotent.
  Status Close(Deadline deadline);

  // What the lineage took out of the data. Set by Restore.
  std::vector<SampleRange> skipped_samples() const;

 private:
  class Impl;
  explicit CheckpointEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace perdure
