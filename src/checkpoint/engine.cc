// The engine's door: opening, restoring, and what the end of a step leads to. The saves themselves
// and their threads are in save_queue.h; "ckpt-agree" answers for this rank when a save is
// requested out of turn (agreement.h).
#include "checkpoint/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "checkpoint/agreement.h"
#include "checkpoint/claim.h"
#include "checkpoint/exchange.h"
#include "checkpoint/foreign_init.h"
#include "checkpoint/json.h"
#include "checkpoint/pacer.h"
#include "checkpoint/parts.h"
#include "checkpoint/restore.h"
#include "checkpoint/save_queue.h"
#include "storage/file_store.h"

namespace perdure {
namespace {

// How long another rank's file system may take to show the root that rank 0 has just made.
constexpr Duration kVisibilityMax = std::chrono::seconds(10);
constexpr Duration kVisibilityPause = std::chrono::milliseconds(200);
constexpr int kKeepLastMin = 2;

Status CheckOptions(const CheckpointOptions& options) {
  const auto bad = [](std::string why) { return Status(Code::kInvalidArgument, std::move(why)); };
  if (options.root.empty()) return bad("the checkpoint directory is not given");
  if (options.interval_steps < 0) {
    return bad(fmt::format("checkpoint interval {} is negative", options.interval_steps));
  }
  if (options.keep_last_n < kKeepLastMin) {
    return bad(fmt::format("keep_last_n {} leaves nothing to fall back to; use at least {}",
                           options.keep_last_n, kKeepLastMin));
  }
  if (options.interval_steps > 0 && options.interval.chosen()) {
    return bad("an interval is both given in steps and to be chosen; use one of them");
  }
  if (options.interval.max_lost < Duration::zero()) return bad("max_lost is negative");
  if (options.keep_every_steps < 0) return bad("keep_every_steps is negative");
  if (options.stop_after < 0) return bad("stop_after is negative");
  return Ok();
}

Result<RootFile> ReadRootWhenVisible(Exchange& exchange, Files& files, const std::string& root,
                                     Deadline deadline) {
  // Half of the time that is left, so that the answer still arrives.
  const Duration patience =
      std::min(kVisibilityMax, deadline.Remaining(exchange.clock().Now()) / 2);
  const Deadline visible = Deadline::After(patience, exchange.clock());
  FileStore store(files, root);
  for (;;) {
    Result<RootFile> file = ReadRootFile(store);
    if (file.status().code() != Code::kNotFound || visible.Passed(exchange.clock().Now())) {
      return file;
    }
    exchange.Pause(kVisibilityPause);
  }
}

// Every rank sees the same root, or all learn which one does not.
Result<std::string> AgreeOnRoot(const CheckpointOptions& options, Exchange& exchange, Files& files,
                                Deadline deadline) {
  const std::string key = fmt::format("/ckpt/root/{}", exchange.rank().value());
  const Result<RootFile> file = ReadRootWhenVisible(exchange, files, options.root, deadline);
  const std::string mine =
      file.ok() ? "id " + file->root_id : fmt::format("error {}", file.status().message());
  PERDURE_RETURN_IF_ERROR(exchange.Put(key, mine, deadline));
  if (exchange.is_rank_0()) {
    std::string verdict = mine;
    for (int rank = 0; rank < exchange.size() && verdict.rfind("id ", 0) == 0; ++rank) {
      const Result<std::string> other = exchange.Get(fmt::format("/ckpt/root/{}", rank), deadline);
      if (!other.ok()) {
        verdict = fmt::format("error rank {} did not say which checkpoint directory it sees: {}",
                              rank, other.status().message());
      } else if (*other != mine) {
        verdict = fmt::format(
            "error rank {} does not see the checkpoint directory {} of rank 0 "
            "({}); is it mounted there?",
            rank, options.root, *other);
      }
    }
    PERDURE_RETURN_IF_ERROR(exchange.Put("/ckpt/root/verdict", verdict,
                                         Deadline(deadline.at() + std::chrono::seconds(5))));
  }
  PERDURE_ASSIGN_OR_RETURN(
      const std::string verdict,
      exchange.Get("/ckpt/root/verdict", Deadline(deadline.at() + std::chrono::seconds(5))));
  if (verdict.rfind("id ", 0) != 0) {
    return Status(Code::kFailedPrecondition,
                  verdict.substr(std::min<std::size_t>(6, verdict.size())));
  }
  return verdict.substr(3);
}

}  // namespace

class CheckpointEngine::Impl {
 public:
  Impl(CheckpointOptions options, std::string root_id, CommitGroup& group, Files& files,
       const Clock& clock, CheckpointEvents events, const Devices* devices)
      : options_(std::move(options)),
        root_id_(std::move(root_id)),
        files_(files),
        clock_(clock),
        events_(std::move(events)),
        exchange_(group, clock),
        agreement_(exchange_, options_.checkpoint_deadline),
        pacer_(options_.interval, options_.history, group.size(), options_.async_save, clock),
        pacing_(exchange_.is_rank_0() && options_.interval.chosen()),
        devices_(devices == nullptr ? cpu_only_ : *devices),
        parts_(group.rank(), group.size()),
        saves_(options_,
               {options_.root,
                root_id_,
                options_.job,
                {options_.keep_last_n, options_.keep_every_steps}},
               exchange_, files, parts_, devices_, saver_events_) {}

  ~Impl() {
    // Nobody drained: say so, and end.
    static_cast<void>(Close(Deadline(clock_.Now())).ok());
  }

  Parts& parts() { return parts_; }

  Result<RestoreReport> Restore();
  Status Save(std::int64_t step);
  Status Wait(Deadline deadline) { return saves_.Wait(deadline); }
  Status EndStep(std::int64_t step, bool updated);
  Status Close(Deadline deadline);

  void BeginStep(std::int64_t step) {
    saves_.BeginStep();
    agreement_.Begin(step);
  }
  Status BeforeUpdate() { return saves_.Fence(); }
  void FinishCapture() { saves_.FinishCapture(); }
  void RequestSave(std::string reason, bool leave) { agreement_.Request(std::move(reason), leave); }

  std::int64_t last_committed_step() const { return saves_.last_committed_step(); }
  std::vector<SampleRange> skipped_samples() const {
    MutexLock lock(mutex_);
    return skipped_samples_;
  }

 private:
  Status InitializeUnlessResumed(RestoreReport& report);
  CheckpointEvents Observed();
  Status StartSave(Step step, bool may_skip);
  Status Leave(const StepAgreement::Decision& decision, std::int64_t step);

  const CheckpointOptions options_;
  const std::string root_id_;
  Files& files_;
  const Clock& clock_;
  const CheckpointEvents events_;
  const CheckpointEvents saver_events_ = Observed();
  Exchange exchange_;
  StepAgreement agreement_;
  Pacer pacer_;
  const bool pacing_;  // this is rank 0, and the interval is chosen

  const Devices cpu_only_;
  const Devices& devices_;

  // The training thread.
  Parts parts_;
  bool restored_ = false;

  SaveQueue saves_;

  mutable Mutex mutex_;
  std::vector<SampleRange> skipped_samples_ PERDURE_GUARDED_BY(mutex_);
};

Result<RestoreReport> CheckpointEngine::Impl::Restore() {
  if (restored_) {
    return Status(Code::kFailedPrecondition, "Restore was called twice in one session");
  }
  const RestoreInput input{options_.root, root_id_, options_.restore,
                           Deadline::After(options_.restore_deadline, clock_), &devices_};
  PERDURE_ASSIGN_OR_RETURN(RestoreResult result,
                           RunRestore(input, exchange_, files_, parts_, saves_.scratch()));
  if (!options_.init_from.path.empty())
    PERDURE_RETURN_IF_ERROR(InitializeUnlessResumed(result.report));
  restored_ = true;
  {
    MutexLock lock(mutex_);
    skipped_samples_ = std::move(result.skipped_samples);
  }
  if (!result.report.fresh) {
    Log().info("restored {} ({} bytes read and verified by this rank in {:.2f} s); next step {}",
               result.report.checkpoint, result.report.bytes, result.report.seconds,
               result.report.next_step);
  }
  if (pacing_) pacer_.Start();
  saves_.Start(std::move(result.lineage));
  agreement_.Start(result.report.next_step);
  return std::move(result.report);
}

Status CheckpointEngine::Impl::InitializeUnlessResumed(RestoreReport& report) {
  if (!report.fresh) {
    if (exchange_.is_rank_0()) {
      Log().warn("init_from {} is NOT used: the run goes on from {}", options_.init_from.path,
                 report.checkpoint);
    }
    return Ok();
  }
  PERDURE_ASSIGN_OR_RETURN(
      const InitReport init,
      RunForeignInit(options_.init_from, exchange_, files_, parts_, saves_.scratch(), devices_,
                     Deadline::After(options_.restore_deadline, clock_)));
  report.initialized_from = options_.init_from.path;
  report.bytes = init.bytes;
  return Ok();
}

Status CheckpointEngine::Impl::StartSave(Step step, bool may_skip) {
  if (!restored_) {
    return Status(Code::kFailedPrecondition,
                  "a save before Restore; call Checkpointer::Restore() first, it also begins a "
                  "fresh run");
  }
  if (!pacing_) return saves_.Begin(step, may_skip);
  const std::int64_t before = saves_.begun();
  pacer_.SaveBegins();
  const Status begun = saves_.Begin(step, may_skip);
  if (saves_.begun() == before) pacer_.SaveEnded();  // joined, or refused
  return begun;
}

// What the events tell, the pacer hears first.
CheckpointEvents CheckpointEngine::Impl::Observed() {
  CheckpointEvents observed = events_;
  if (!options_.interval.chosen()) return observed;
  observed.on_committed = [this](const CheckpointCommit& commit) {
    if (pacing_) pacer_.SaveCommitted(commit.seconds);
    if (events_.on_committed) events_.on_committed(commit);
  };
  observed.on_failed = [this](const CheckpointFailure& failure) {
    if (pacing_) pacer_.SaveEnded();
    if (events_.on_failed) events_.on_failed(failure);
  };
  observed.on_stall = [this](bool begins) {
    if (pacing_) pacer_.Stall(begins);
    if (events_.on_stall) events_.on_stall(begins);
  };
  return observed;
}

Status CheckpointEngine::Impl::Save(std::int64_t step) {
  PERDURE_RETURN_IF_ERROR(StartSave(Step(step), /*may_skip=*/false));
  return options_.async_save ? Ok() : saves_.last_outcome();
}

Status CheckpointEngine::Impl::EndStep(std::int64_t step, bool updated) {
  if (pacing_ && pacer_.EndStep()) agreement_.Request("the interval is over", /*leave=*/false);
  saves_.EndStep(step, updated);
  PERDURE_ASSIGN_OR_RETURN(const StepAgreement::Decision decision, agreement_.PassEnd(step));
  const bool due = options_.interval_steps > 0 && step > 0 && step % options_.interval_steps == 0;
  Status started;
  if (due || decision.save) started = StartSave(Step(step), /*may_skip=*/!decision.save);
  if (decision.leave) return Leave(decision, step);
  PERDURE_RETURN_IF_ERROR(started);
  return saves_.Health();
}

Status CheckpointEngine::Impl::Leave(const StepAgreement::Decision& decision, std::int64_t step) {
  const Deadline grace = Deadline::After(options_.preemption_grace, clock_);
  Status durable = decision.save ? Ok() : Status(Code::kUnavailable, decision.reason);
  if (decision.save) durable = saves_.Wait(grace);
  if (durable.ok()) {
    return Status(Code::kPreempted, fmt::format("{}: leaving; the checkpoint of step {} is durable",
                                                decision.reason, step));
  }
  return Status(Code::kPreempted,
                fmt::format("leaving without a new checkpoint (the last durable one is of step "
                            "{}): {}",
                            saves_.last_committed_step(), durable.message()));
}

Status CheckpointEngine::Impl::Close(Deadline deadline) {
  agreement_.Finish(deadline);
  const Status durable = saves_.Close(deadline);  // stops the exchange
  agreement_.Stop();
  return durable;
}

// ---------------------------------------------------------------- the door

Status CheckpointEngine::Claim(Files& files, const std::string& root, const std::string& job,
                               Generation generation, const Clock& clock) {
  return ClaimGeneration(files, root, job, generation, clock.WallNow());
}

Result<Generation> CheckpointEngine::ClaimNext(Files& files, const std::string& root,
                                               const std::string& job, Generation at_least,
                                               const Clock& clock) {
  return ClaimNextGeneration(files, root, job, at_least, clock.WallNow());
}

Result<std::unique_ptr<CheckpointEngine>> CheckpointEngine::Open(
    CheckpointOptions options, CommitGroup& group, Files& files, const Clock& clock,
    CheckpointEvents events, Deadline deadline, const Devices* devices) {
  PERDURE_RETURN_IF_ERROR(CheckOptions(options));
  Exchange exchange(group, clock);
  PERDURE_ASSIGN_OR_RETURN(std::string root_id, AgreeOnRoot(options, exchange, files, deadline));
  return std::unique_ptr<CheckpointEngine>(new CheckpointEngine(std::make_unique<Impl>(
      std::move(options), std::move(root_id), group, files, clock, std::move(events), devices)));
}

CheckpointEngine::CheckpointEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointEngine::~CheckpointEngine() = default;

void CheckpointEngine::Add(std::string name, std::unique_ptr<Stateful> part) {
  impl_->parts().Add(std::move(name), std::move(part));
}
void CheckpointEngine::Add(std::string name, Stateful& part) {
  impl_->parts().Add(std::move(name), part);
}
void CheckpointEngine::AddWriter(std::string name, std::function<Status(const std::string&)> write,
                                 std::function<Status(const std::string&)> read,
                                 WorldChange on_world_change) {
  impl_->parts().AddForeign({std::move(name), std::move(write), std::move(read), on_world_change});
}
Result<RestoreReport> CheckpointEngine::Restore() {
  return impl_->Restore();
}
Status CheckpointEngine::Save(std::int64_t step) {
  return impl_->Save(step);
}
Status CheckpointEngine::Wait(Deadline deadline) {
  return impl_->Wait(deadline);
}
std::int64_t CheckpointEngine::last_committed_step() const {
  return impl_->last_committed_step();
}
void CheckpointEngine::BeginStep(std::int64_t step) {
  impl_->BeginStep(step);
}
Status CheckpointEngine::BeforeUpdate() {
  return impl_->BeforeUpdate();
}
void CheckpointEngine::FinishCapture() {
  impl_->FinishCapture();
}
Status CheckpointEngine::EndStep(std::int64_t step, bool updated) {
  return impl_->EndStep(step, updated);
}
void CheckpointEngine::RequestSave(std::string reason, bool then_leave) {
  impl_->RequestSave(std::move(reason), then_leave);
}
Status CheckpointEngine::Close(Deadline deadline) {
  return impl_->Close(deadline);
}
std::vector<SampleRange> CheckpointEngine::skipped_samples() const {
  return impl_->skipped_samples();
}

}  // namespace perdure
