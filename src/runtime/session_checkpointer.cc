#include "runtime/session_checkpointer.h"

#include <utility>

namespace perdure {
namespace {

// In a phase for the length of a scope.
class InPhase {
 public:
  InPhase(Activity& activity, Phase phase)
      : activity_(activity), token_(activity.Enter(phase, "", std::nullopt)) {}
  ~InPhase() { activity_.Leave(token_); }
  InPhase(const InPhase&) = delete;
  InPhase& operator=(const InPhase&) = delete;

 private:
  Activity& activity_;
  const std::uint64_t token_;
};

}  // namespace

void SessionCheckpointer::Add(std::string name, std::unique_ptr<Stateful> part) {
  if (engine_ != nullptr) {
    engine_->Add(std::move(name), std::move(part));
  } else {
    kept_.push_back(std::move(part));
  }
}

void SessionCheckpointer::Add(std::string name, Stateful& part) {
  if (engine_ != nullptr) engine_->Add(std::move(name), part);
}

void SessionCheckpointer::AddWriter(std::string name,
                                    std::function<Status(const std::string&)> write,
                                    std::function<Status(const std::string&)> read,
                                    WorldChange on_world_change) {
  if (engine_ == nullptr) return;
  engine_->AddWriter(std::move(name), std::move(write), std::move(read), on_world_change);
}

Result<RestoreReport> SessionCheckpointer::Restore() {
  const InPhase phase(activity_, Phase::kRestore);
  RestoreReport report;
  if (engine_ != nullptr) {
    PERDURE_ASSIGN_OR_RETURN(report, engine_->Restore());
    lineage_->Set({report.next_step, engine_->skipped_samples()});
  }
  on_restored_(report);
  return report;
}

Status SessionCheckpointer::Save(std::int64_t step) {
  if (engine_ == nullptr) {
    return Status(
        Code::kFailedPrecondition,
        "there is no checkpoint directory to save to: give checkpoint.directory in the job "
        "file, PERDURE_CHECKPOINT_DIR, or SessionOptions::checkpoint_directory");
  }
  const InPhase phase(activity_, Phase::kCheckpoint);
  return engine_->Save(step);
}

Status SessionCheckpointer::Wait(Deadline deadline) {
  return engine_ == nullptr ? Ok() : engine_->Wait(deadline);
}

std::int64_t SessionCheckpointer::last_committed_step() const {
  return engine_ == nullptr ? -1 : engine_->last_committed_step();
}

}  // namespace perdure
