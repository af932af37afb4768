// One whole generation of the toy program over any Files: claim, fork, restore, some saves,
// retention. What the crash, power cut and fault tests run.
#pragma once

#include <barrier>
#include <functional>
#include <string>

#include "support.h"

namespace perdure {

struct Ran {
  Status status;
  RestoreReport report;
  bool state_right = true;  // every rank came back with exactly the state of the step it restored
};

struct GenerationEvents {
  std::function<void(Generation)> on_claimed;
  std::function<void(const CheckpointCommit&)> on_committed;  // rank 0
};

// `steps` saves, each waited for.
inline Ran RunGeneration(Files& files, const std::string& root, int world, std::int64_t steps,
                         const GenerationEvents& events = {}) {
  Ran ran;
  const Result<Generation> claimed =
      CheckpointEngine::ClaimNext(files, root, "toy", Generation(1), RealClock());
  ran.status = claimed.status();
  if (!claimed.ok()) return ran;
  if (events.on_claimed) events.on_claimed(*claimed);
  CheckpointOptions options = ToyOptions(root);
  options.interval_steps = 1;
  options.async_save = false;
  Board board;
  Mutex mutex;
  std::barrier saved(world);
  RunRanks(world, [&](int r) {
    CheckpointEvents rank_events;
    if (r == 0) rank_events.on_committed = events.on_committed;
    ToyRank rank(board, r, world, *claimed, files, options, rank_events);
    Status status = rank.opened;
    const bool right =
        status.ok() && (rank.report.fresh || rank.state->Is(rank.report.next_step - 1));
    for (std::int64_t i = 0; i < steps && status.ok(); ++i) {
      const std::int64_t step = rank.report.next_step + i;
      rank.engine->BeginStep(step);
      rank.state->Set(step);
      status = rank.engine->EndStep(step);
      // Step 0 is not due by the interval. Otherwise this joins.
      if (status.ok()) status = rank.engine->Save(step);
    }
    // Everything is durable or has failed: those who only wait for requests need not wait longer.
    saved.arrive_and_wait();
    board.TakeDown();
    if (status.ok()) status = rank.engine->Close(In(30));
    MutexLock lock(mutex);
    if (ran.status.ok()) ran.status = status;
    if (r == 0) ran.report = rank.report;
    ran.state_right = ran.state_right && right;
  });
  return ran;
}

}  // namespace perdure
