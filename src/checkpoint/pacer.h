// Measures steps and saves on rank 0, and says when the next save is to be asked for. The decision
// is ChooseInterval's; it reaches the other ranks as a request does (agreement.h), so all of them
// save at the end of one step, and none needs to know the interval.
//
// What rank 0 sees is what counts: its own steps and its own standing still, and the time until the
// save was durable on all ranks.
#pragma once

#include <cstdint>
#include <optional>

#include "base/mutex.h"
#include "checkpoint/interval.h"
#include "perdure/clock.h"

namespace perdure {

class Pacer {
 public:
  Pacer(IntervalPolicy policy, InterruptionHistory history, int world, bool behind_training,
        const Clock& clock)
      : policy_(policy),
        history_(history),
        world_(world),
        behind_training_(behind_training),
        clock_(clock) {}

  // ---- the training thread
  void Start();  // the state is that of a checkpoint, or a fresh one
  // The training begins or ends to stand still for a save.
  void Stall(bool begins);
  // At the end of a step, before anything else. A step lasts from the end of the one before, so
  // that waiting for data counts, too. True: ask for a save.
  bool EndStep();
  // A save begins, whoever wanted it.
  void SaveBegins();

  // ---- any thread
  void SaveCommitted(double durable_seconds);
  void SaveEnded();  // failed, or was skipped

 private:
  IntervalMeasured Measured() const PERDURE_REQUIRES(mutex_);
  void Choose() PERDURE_REQUIRES(mutex_);

  const IntervalPolicy policy_;
  const InterruptionHistory history_;
  const int world_;
  const bool behind_training_;
  const Clock& clock_;

  Mutex mutex_;
  MonotonicTime started_ PERDURE_GUARDED_BY(mutex_){};
  MonotonicTime captured_ PERDURE_GUARDED_BY(mutex_){};  // the last save, or the start
  // The end of the step before; none: the first one, which holds whatever a program does first.
  std::optional<MonotonicTime> step_began_ PERDURE_GUARDED_BY(mutex_);
  bool step_beside_save_ PERDURE_GUARDED_BY(mutex_) = false;
  double stalled_in_step_ PERDURE_GUARDED_BY(mutex_) = 0;
  double stalled_in_save_ PERDURE_GUARDED_BY(mutex_) = 0;
  MonotonicTime stalled_since_ PERDURE_GUARDED_BY(mutex_){};
  int in_flight_ PERDURE_GUARDED_BY(mutex_) = 0;
  bool committed_since_choice_ PERDURE_GUARDED_BY(mutex_) = false;
  bool asked_ PERDURE_GUARDED_BY(mutex_) = false;
  MonotonicTime asked_at_ PERDURE_GUARDED_BY(mutex_){};
  // Moving averages, in seconds.
  std::optional<double> step_ PERDURE_GUARDED_BY(mutex_);
  std::optional<double> step_beside_ PERDURE_GUARDED_BY(mutex_);
  std::optional<double> blocked_ PERDURE_GUARDED_BY(mutex_);
  std::optional<double> durable_ PERDURE_GUARDED_BY(mutex_);
  std::optional<IntervalChoice> in_force_ PERDURE_GUARDED_BY(mutex_);
};

}  // namespace perdure
