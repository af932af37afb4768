// At which step a save that nobody planned is taken: the same one on every rank, and one that every
// rank can still reach. docs/decisions/step-agreement.md says why the answer does not come from the
// training thread.
//
// Protocol of round i:
//   1 whoever wants a save posts want/i (several may; any one of them is enough)
//   2 every rank's watcher answers at once with k, the step whose end its training thread has not
//     passed yet, and thereby pledges that it will not pass that end before the decision is known;
//     a rank whose loop is over answers "done"
//   3 rank 0 publishes decision/i = the largest k; "none" when a rank is done or does not answer
//   4 each rank saves at the end of that step
// A rank that ends its loop answers the round after the last one it has seen in advance, and rank 0
// decides it in advance; from the first "done" on rank 0 decides "none" without asking.
// No rank waits for another's training thread, so a rank inside a collective of step k, waiting for
// one that stands at the end of step k - 1, cannot be waited for by it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "base/thread.h"
#include "checkpoint/exchange.h"
#include "perdure/clock.h"
#include "perdure/status.h"

namespace perdure {

class StepAgreement {
 public:
  // What the end of a step has to do.
  struct Decision {
    bool save = false;
    bool leave = false;  // with save false: leave although no save could be agreed on
    std::string reason;
  };

  // `exchange` outlives this. `deadline`: how long answers and decisions may take.
  StepAgreement(Exchange& exchange, Duration deadline) : exchange_(exchange), patience_(deadline) {}
  ~StepAgreement() { Stop(); }

  // From now on this rank answers. `next_step` is the first step it runs.
  void Start(std::int64_t next_step);

  // Any thread. Before Start it is kept.
  void Request(std::string reason, bool leave);

  // The training thread: a step begins.
  void Begin(std::int64_t step);
  // The training thread, at the end of a step. Waits only while a decision is being made.
  Result<Decision> PassEnd(std::int64_t step);
  // The training thread has ended its loop. Waits for the end of a round that this rank has
  // answered, then answers the next one in advance: nobody waits for a rank that is gone.
  void Finish(Deadline deadline);

  // Ends the watcher; the exchange must have been stopped or the rounds be quiet. Idempotent.
  void Stop();

 private:
  struct Want {
    std::string reason;
    bool leave = false;
  };
  struct Agreed {
    std::int64_t step = 0;
    Decision decision;
  };

  void Watch();
  // One round, from the first sign of a want to the decision. An error ends the watcher.
  Status RunRound(std::int64_t round);
  Status Decide(std::int64_t round, const std::string& want);
  void Learn(const std::string& decision);

  Exchange& exchange_;
  const Duration patience_;

  Mutex mutex_;
  CondVar changed_;
  std::int64_t next_end_ PERDURE_GUARDED_BY(mutex_) = 0;
  bool finished_ PERDURE_GUARDED_BY(mutex_) = false;
  bool stopping_ PERDURE_GUARDED_BY(mutex_) = false;
  std::int64_t round_ PERDURE_GUARDED_BY(mutex_) = 0;
  bool started_ PERDURE_GUARDED_BY(mutex_) = false;
  bool in_round_ PERDURE_GUARDED_BY(mutex_) = false;  // answered, not decided
  std::optional<std::int64_t> pledge_ PERDURE_GUARDED_BY(mutex_);
  std::optional<Want> wanted_ PERDURE_GUARDED_BY(mutex_);
  std::deque<Agreed> agreed_ PERDURE_GUARDED_BY(mutex_);
  Status broken_ PERDURE_GUARDED_BY(mutex_);

  bool somebody_done_ = false;  // rank 0's watcher only

  Thread watcher_;  // last: it uses the rest
};

}  // namespace perdure
