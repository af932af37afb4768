// The Checkpointer that the training body sees: the engine, with heartbeat phases around it and the
// restore told to the supervisor and to the samplers; or, without a checkpoint directory, one that
// says so.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/engine.h"
#include "health/activity.h"
#include "perdure/checkpoint.h"
#include "perdure/data.h"

namespace perdure {

class SessionCheckpointer final : public Checkpointer {
 public:
  // `engine` may be null: checkpoints are off. Everything outlives this.
  SessionCheckpointer(CheckpointEngine* engine, Activity& activity,
                      std::shared_ptr<DataLineage> lineage,
                      std::function<void(const RestoreReport&)> on_restored)
      : engine_(engine),
        activity_(activity),
        lineage_(std::move(lineage)),
        on_restored_(std::move(on_restored)) {}

  void Add(std::string name, std::unique_ptr<Stateful> part) override;
  void Add(std::string name, Stateful& part) override;
  void AddWriter(std::string name, std::function<Status(const std::string&)> write,
                 std::function<Status(const std::string&)> read,
                 WorldChange on_world_change = WorldChange::kError) override;
  Result<RestoreReport> Restore() override;
  Status Save(std::int64_t step) override;
  Status Wait(Deadline deadline) override;
  std::int64_t last_committed_step() const override;

 private:
  CheckpointEngine* const engine_;
  Activity& activity_;
  const std::shared_ptr<DataLineage> lineage_;
  const std::function<void(const RestoreReport&)> on_restored_;
  std::vector<std::unique_ptr<Stateful>> kept_;  // without an engine, parts still have an owner
};

}  // namespace perdure
