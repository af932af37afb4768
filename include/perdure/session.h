// The one object that a training program creates.
//
//   int main(int argc, char** argv) {
//     return perdure::Run(argc, argv, [&](perdure::Session& session) -> perdure::Status {
//       … build the model, add it to session.checkpointer(), Restore() …
//       for (std::int64_t step = restored.next_step; step < total; ++step) {
//         perdure::StepScope scope = session.BeginStep(step);
//         … forward, backward, average the gradients over session.world() …
//         PERDURE_RETURN_IF_ERROR(scope.BeforeUpdate());
//         … optimizer step …
//         PERDURE_RETURN_IF_ERROR(scope.End(metrics));
//       }
//       return perdure::Ok();
//     });
//   }
//
// The body runs once per generation and must be re-entrant. What it returns decides what happens
// next. Threads: BeginStep, BeforeUpdate, End and Phase belong to the training thread; everything
// else may be called from any thread. A forked child finds the library inert: its calls return
// kFailedPrecondition and it reports nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "perdure/checkpoint.h"
#include "perdure/clock.h"
#include "perdure/comm.h"
#include "perdure/data.h"
#include "perdure/export.h"
#include "perdure/health.h"
#include "perdure/ids.h"
#include "perdure/status.h"

namespace perdure {

// What a step found out. All optional; what is there is shown, journalled and watched.
struct StepMetrics {
  std::optional<double> loss;
  std::optional<double> grad_norm;
  std::optional<double> loss_scale;
  std::int64_t tokens = 0;
  std::int64_t samples = 0;
  bool finite = true;           // false: loss or gradients were not finite
  bool update_skipped = false;  // no update in this step: loss scaling, or accumulation
};

// How a session starts. Everything left empty is taken from the environment: what the supervisor
// sets (PERDURE_*), else what torchrun sets (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, …), else
// one rank alone. Without a supervisor also: PERDURE_CHECKPOINT_KEEP, PERDURE_RESUME,
// PERDURE_INIT_FROM (safetensors files that give a fresh start its first values),
// PERDURE_CHECKPOINT_MAX_LOST_MINUTES (the interval is chosen so that no more is lost),
// PERDURE_CHECKPOINT_WHEN_BUSY (wait, skip, queue: a save that is due while one is in flight) and
// PERDURE_CHECKPOINT_STAGING_BYTES (what a rank's copies of its state may take).
struct SessionOptions {
  std::string job;                   // PERDURE_JOB
  std::string checkpoint_directory;  // PERDURE_CHECKPOINT_DIR; none: checkpoints are off
  std::optional<std::int64_t>
      checkpoint_interval;  // steps; PERDURE_CHECKPOINT_INTERVAL (or "auto"); 0: only on request
  // The CUDA stream (cudaStream_t) on which the program changes its state; null: the default
  // stream. Captures come after what is queued on it, and updates queued on it after captures.
  void* cuda_stream = nullptr;
};

class Session;

// One step of the training loop. Movable; ends by End(), or is dropped when the body leaves early.
class PERDURE_API StepScope {
 public:
  class Impl;
  explicit StepScope(std::unique_ptr<Impl> impl);
  ~StepScope();
  StepScope(StepScope&&) noexcept;
  StepScope& operator=(StepScope&&) noexcept;

  // Between backward and optimizer step: returns once a save in flight has captured what the update
  // will change. Idempotent within a step. Programs that call it in every step that updates have
  // most of their state copied behind the next forward and backward (checkpoint.h says what must
  // keep still for it); for others the copy is made in End.
  Status BeforeUpdate();

  // The step is done: heartbeat, the save that is due, preemption. kPreempted or kAborted mean:
  // return this status from the body now.
  Status End(const StepMetrics& metrics = {});

 private:
  std::unique_ptr<Impl> impl_;
};

class PERDURE_API Session {
 public:
  class Impl;

  // Joins the job: control store, claim, communicator. Bounded by the init deadline.
  static Result<std::unique_ptr<Session>> Open(SessionOptions options);

  // Leaves the job with what the body returned: drains saves, says goodbye; rank 0 leaves last.
  // Returns the process exit code: 0 done, 1 failed or not durable, 143 preempted with a durable
  // checkpoint.
  int Close(const Status& body_status);
  ~Session();  // Close(kAborted) if it was not called

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Rank rank() const;
  int world_size() const;
  Generation generation() const;
  const std::string& job() const;

  // All ranks of the job.
  Communicator& world();
  Checkpointer& checkpointer();
  DataPlacement data_placement() const;

  StepScope BeginStep(std::int64_t step);

  // For everything that is not a step: "eval", "data", … or a name of the program's own. `deadline`
  // bounds the silence allowed in it.
  PhaseScope Phase(std::string_view name, std::chrono::seconds deadline);

 private:
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Open, body, Close. An exception out of the body is the user code's failure: its text is kept and
// the exit code is 1. Prints one line to stderr when the session cannot be opened (exit code 1, or
// 2 when the environment is wrong).
PERDURE_API int Run(int argc, char** argv, const std::function<Status(Session&)>& body);

}  // namespace perdure
