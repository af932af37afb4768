#include "checkpoint/save_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "checkpoint/foreign.h"

namespace perdure {
namespace {

std::string DueKey(Step step) {
  return fmt::format("/ckpt/due/{}.", step.value());  // no key is another one's beginning
}

constexpr std::string_view kGo = "go";
constexpr std::string_view kSkip = "skip";

}  // namespace

// The training thread stands still for a save. Nests.
class SaveQueue::Stall {
 public:
  explicit Stall(SaveQueue& queue) : queue_(queue) {
    if (queue_.stalls_++ == 0 && queue_.events_.on_stall) queue_.events_.on_stall(true);
  }
  ~Stall() {
    if (--queue_.stalls_ == 0 && queue_.events_.on_stall) queue_.events_.on_stall(false);
  }
  Stall(const Stall&) = delete;
  Stall& operator=(const Stall&) = delete;

 private:
  SaveQueue& queue_;
};

SaveQueue::SaveQueue(const CheckpointOptions& options, Saver::Settings settings, Exchange& exchange,
                     Files& files, Parts& parts, const Devices& devices,
                     const CheckpointEvents& events)
    : options_(options),
      exchange_(exchange),
      files_(files),
      clock_(exchange.clock()),
      events_(events),
      parts_(parts),
      devices_(devices),
      streams_(devices),
      saver_(std::move(settings), exchange, files) {}

SaveQueue::~SaveQueue() {
  static_cast<void>(Close(Deadline(clock_.Now())).ok());
}

void SaveQueue::Start(Lineage lineage) {
  training_thread_ = std::this_thread::get_id();
  saver_.SetLineage(std::move(lineage));
  // Restoring needs room for all of the state; saving may have to do with less.
  if (options_.staging_bytes_max > 0 &&
      slots_[0].capacity() > options_.staging_bytes_max - kWriterBytes) {
    slots_[0].Release();
  }
  capture_thread_ = Thread("ckpt-capture", [this] { RunCapture(); });
  saver_thread_ = Thread("ckpt-saver", [this] { RunSaver(); });
}

// ---------------------------------------------------------------- the fence

void SaveQueue::BeginStep() {
  fence_.BeginStep();
  // Complete before the step began: whatever the step does, it came after. With verify the fence
  // itself is to look.
  if (!options_.verify_capture && open_ != nullptr && open_->snapshot->captured()) {
    static_cast<void>(PassFence(open_->deadline).ok());
  }
}

Status SaveQueue::Fence() {
  fence_.Fence();
  return open_ == nullptr ? Ok() : PassFence(open_->deadline);
}

void SaveQueue::FinishCapture() {
  if (open_ != nullptr) static_cast<void>(PassFence(open_->deadline).ok());
}

Status SaveQueue::PassFence(Deadline deadline) {
  const std::shared_ptr<Job> job = std::exchange(open_, nullptr);
  if (job == nullptr) return Ok();
  Snapshot& snapshot = *job->snapshot;
  const Deadline patience = Earlier(deadline, job->deadline);
  if (!snapshot.captured()) {
    const Stall stall(*this);
    if (!snapshot.WaitCaptured(patience)) {
      // The save has failed; the training goes on.
      snapshot.GiveUp(Status(Code::kDeadlineExceeded, "the state was not captured in time"));
    }
  }
  return snapshot.Seal();
}

void SaveQueue::EndStep(std::int64_t step, bool updated) {
  const bool missed_before = fence_.missed();
  if (fence_.EndStep(updated)) return;
  if (const std::shared_ptr<Job> job = std::exchange(open_, nullptr); job != nullptr) {
    job->snapshot->GiveUp(Status(
        Code::kFailedPrecondition,
        fmt::format(
            "step {} ended without StepScope::BeforeUpdate while the state of step {} was still "
            "being captured, so the copy may be of two steps; call BeforeUpdate in every step "
            "before the update, or end a step without one with update_skipped",
            step, job->step.value())));
  }
  if (!missed_before && told_how_) {
    Log().warn(
        "step {} ended without StepScope::BeforeUpdate; from now on the training stands still "
        "while its state is copied",
        step);
  }
}

// ---------------------------------------------------------------- beginning a save

bool SaveQueue::WaitForRoom(std::size_t in_flight_max, Deadline deadline) {
  while (in_flight_.size() > in_flight_max) {
    if (!changed_.WaitUntil(mutex_, deadline) && in_flight_.size() > in_flight_max) return false;
  }
  return true;
}

Result<bool> SaveQueue::Skips(Step step) {
  // A save in flight ends by its own deadline.
  const Deadline patience = Deadline::After(2 * options_.checkpoint_deadline, clock_);
  const auto busy = [this] {
    MutexLock lock(mutex_);
    return !in_flight_.empty() && !closing_;
  };
  if (exchange_.is_rank_0()) {
    const bool skip = busy();
    PERDURE_RETURN_IF_ERROR(exchange_.Put(DueKey(step), skip ? kSkip : kGo, patience));
    MutexLock lock(mutex_);
    said_.push_back(step);
    return skip;
  }
  while (busy()) {
    const Result<std::string> word = exchange_.Glance(DueKey(step));
    if (word.ok()) return *word == kSkip;
    if (word.status().code() != Code::kDeadlineExceeded) return word.status();
    if (patience.Passed(clock_.Now())) {
      return Status(Code::kDeadlineExceeded,
                    fmt::format("rank 0 did not say in time whether the checkpoint of step {} is "
                                "skipped",
                                step.value()));
    }
  }
  return false;
}

void SaveQueue::NoteSkipped(Step step) {
  std::int64_t skipped = 0;
  {
    MutexLock lock(mutex_);
    skipped = ++skipped_;
  }
  const std::string reason = "the one before is still being written";
  if (exchange_.is_rank_0()) {
    Log().warn("checkpoint of step {} skipped: {} ({} skipped so far)", step.value(), reason,
               skipped);
  }
  if (events_.on_skipped) events_.on_skipped({step, reason, skipped});
}

// A free slot, and how much may be in it. What the other one holds on to counts.
std::size_t SaveQueue::TakeSlot(std::int64_t* staging_bytes) {
  std::size_t slot = 0;
  bool other_in_use = false;
  {
    MutexLock lock(mutex_);
    for (const std::shared_ptr<Job>& job : in_flight_) {
      slot = 1 - job->slot;
      other_in_use = true;
    }
  }
  *staging_bytes = INT64_MAX;
  if (options_.staging_bytes_max == 0) return slot;
  Staging& other = slots_[1 - slot];
  if (!other_in_use) other.Release();
  // A budget so small that the writer's own memory would fill it is for copies alone.
  const std::int64_t budget = options_.staging_bytes_max -
                              (options_.staging_bytes_max >= 2 * kWriterBytes ? kWriterBytes : 0);
  *staging_bytes = std::max<std::int64_t>(0, budget - other.capacity());
  if (slots_[slot].capacity() > *staging_bytes) slots_[slot].Release();
  return slot;
}

std::shared_ptr<SaveQueue::Job> SaveQueue::Capture(Step step, MonotonicTime begun) {
  auto job =
      std::make_shared<Job>(step, begun, Deadline::After(options_.checkpoint_deadline, clock_));
  job->first_try = tries_of_step_;
  const bool may_defer = options_.async_save && options_.deferred_capture && fence_.MayDefer();
  Snapshot::Options how{may_defer, options_.verify_capture, 0, job->deadline};
  job->slot = TakeSlot(&how.staging_bytes);
  Result<std::string> foreign =
      WriteForeign(files_, options_.root, {exchange_.generation(), step}, parts_.foreign());
  job->captured = foreign.status();
  if (!foreign.ok()) return job;
  job->foreign = std::move(foreign).value();
  const auto take = [&]() -> Status {
    PERDURE_ASSIGN_OR_RETURN(LocalState state, parts_.Describe());
    PERDURE_ASSIGN_OR_RETURN(job->snapshot, Snapshot::Take(std::move(state), how, slots_[job->slot],
                                                           devices_, streams_));
    return Ok();
  };
  job->captured = take();
  if (job->captured.code() == Code::kResourceExhausted && how.staging_bytes > 0) {
    // Slices need no memory; better a training that waits than no checkpoint.
    Log().warn("{}; the checkpoint of step {} is written slice by slice", job->captured.message(),
               step.value());
    how.staging_bytes = 0;
    slots_[job->slot].Release();
    job->captured = take();
  }
  if (!job->captured.ok()) return job;
  const CapturePlan& plan = job->snapshot->plan();
  if (!std::exchange(told_how_, true)) {
    Log().info(
        "capturing {} bytes at the end of a step{}{}", plan.staged_bytes - plan.deferred_bytes,
        plan.deferred_bytes == 0 ? std::string()
                                 : fmt::format(", {} behind the next", plan.deferred_bytes),
        plan.streamed_bytes == 0 ? std::string()
                                 : fmt::format(", {} slice by slice (staging_bytes_max is {})",
                                               plan.streamed_bytes, options_.staging_bytes_max));
  }
  return job;
}

Status SaveQueue::Begin(Step step, bool may_skip) {
  const MonotonicTime begun = clock_.Now();
  const Stall stall(*this);
  if (open_ != nullptr) PERDURE_RETURN_IF_ERROR(PassFence(open_->deadline));
  const bool skips = may_skip && options_.when_busy == WhenBusy::kSkip;
  if (skips) {
    PERDURE_ASSIGN_OR_RETURN(const bool skip, Skips(step));
    if (skip) {
      NoteSkipped(step);
      return Ok();
    }
  }
  {
    MutexLock lock(mutex_);
    if (closing_) return Status(Code::kFailedPrecondition, "the checkpointer is closed");
    const bool again = last_started_ == step;
    const std::size_t others = options_.when_busy == WhenBusy::kQueue && !again ? 1 : 0;
    const Deadline patience = Deadline::After(2 * options_.checkpoint_deadline, clock_);
    if (!WaitForRoom(others, patience)) {
      return Status(
          Code::kDeadlineExceeded,
          fmt::format("the checkpoint of step {} is still in flight", last_started_.value()));
    }
    PERDURE_RETURN_IF_ERROR(fenced_);
    if (again && last_outcome_.ok()) return Ok();  // committed already: joined
    if (!again) tries_of_step_ = 0;
  }
  // CKPT-7: from here on the save works on its own copy, or on what the fence keeps still.
  const std::shared_ptr<Job> job = Capture(step, begun);
  job->ask_rank_0 = skips && !exchange_.is_rank_0();
  last_started_ = step;
  tries_of_step_ += Saver::kTriesPerSave;
  const bool open = job->snapshot != nullptr && !job->snapshot->captured();
  if (open) open_ = job;
  {
    MutexLock lock(mutex_);
    if (open) to_copy_ = job;
    in_flight_.push_back(job);
    ++begun_;
    changed_.NotifyAll();
  }
  if (open && job->snapshot->plan().blocking) PERDURE_RETURN_IF_ERROR(PassFence(job->deadline));
  if (options_.async_save) return Ok();
  // The attempt and its retry end by the job's deadline, and a moment for telling.
  MutexLock lock(mutex_);
  if (!WaitForRoom(0, Deadline::After(2 * options_.checkpoint_deadline, clock_))) {
    return Status(Code::kDeadlineExceeded,
                  fmt::format("the checkpoint of step {} did not end in time", step.value()));
  }
  return Ok();
}

// ---------------------------------------------------------------- behind the training

void SaveQueue::RunCapture() {
  for (;;) {
    std::shared_ptr<Job> job;
    {
      MutexLock lock(mutex_);
      while (to_copy_ == nullptr && !closing_) changed_.Wait(mutex_);
      if (to_copy_ == nullptr) return;
      job = std::exchange(to_copy_, nullptr);
    }
    job->snapshot->CopyDeferred();
  }
}

void SaveQueue::RunSaver() {
  for (;;) {
    std::shared_ptr<Job> job;
    {
      MutexLock lock(mutex_);
      while (in_flight_.empty() && !closing_) changed_.Wait(mutex_);
      if (in_flight_.empty()) return;
      job = in_flight_.front();
    }
    SaveOne(*job);
    DropForeign(files_, job->foreign);
    if (job->snapshot != nullptr) {
      // Lets the fence go when the save ended before the capture did.
      job->snapshot->GiveUp(Status(Code::kAborted, "the save has ended"));
      job->snapshot->WaitCopier();
    }
    MutexLock lock(mutex_);
    in_flight_.pop_front();
    changed_.NotifyAll();
  }
}

void SaveQueue::SaveOne(const Job& job) {
  if (job.ask_rank_0) {
    const Result<std::string> word = exchange_.Get(DueKey(job.step), job.deadline);
    if (word.ok() && *word == kSkip) {
      NoteSkipped(job.step);
      return;
    }
    // Without a word the save itself will say what is wrong.
  }
  const SaveOutcome outcome = saver_.Save(
      {job.step, job.first_try, job.captured, job.snapshot.get(), job.deadline, job.foreign});
  Conclude(job, outcome);
  if (!outcome.status.ok()) return;
  // All ranks were there, so all have read what was said up to this step.
  std::vector<Step> read;
  {
    MutexLock lock(mutex_);
    const auto later =
        std::partition(said_.begin(), said_.end(), [&](Step said) { return said > job.step; });
    read.assign(later, said_.end());
    said_.erase(later, said_.end());
  }
  for (const Step said : read) exchange_.Forget(DueKey(said), job.deadline);
  saver_.TidyUp(outcome.name);
}

void SaveQueue::Conclude(const Job& job, const SaveOutcome& outcome) {
  int in_a_row = 0;
  {
    MutexLock lock(mutex_);
    last_outcome_ =
        outcome.status.WithContext(fmt::format("checkpoint of step {}", job.step.value()));
    failed_in_a_row_ = outcome.status.ok() ? 0 : failed_in_a_row_ + 1;
    in_a_row = failed_in_a_row_;
    if (outcome.status.ok()) last_committed_ = std::max(last_committed_, job.step.value());
    if (outcome.status.code() == Code::kFenced) fenced_ = outcome.status;
  }
  if (!outcome.status.ok()) {
    Log().error("checkpoint of step {} failed ({} in a row): {}", job.step.value(), in_a_row,
                outcome.status.ToString());
    if (events_.on_failed) events_.on_failed({job.step, outcome.status.message(), in_a_row});
    return;
  }
  const double seconds = Seconds(clock_.Now() - job.begun);
  if (exchange_.is_rank_0()) {
    Log().info("committed {} ({} bytes, {:.2f} s)", outcome.name, outcome.bytes, seconds);
  }
  if (events_.on_committed) {
    events_.on_committed({job.step, exchange_.generation(), outcome.attempt, outcome.name,
                          outcome.bytes, seconds, seconds});
  }
}

// ---------------------------------------------------------------- waiting, closing

Status SaveQueue::Wait(Deadline deadline) {
  // Others wait for the training thread's fence as for the rest.
  std::optional<Stall> stall;
  if (std::this_thread::get_id() == training_thread_) {
    stall.emplace(*this);
    PERDURE_RETURN_IF_ERROR(PassFence(deadline));
  }
  MutexLock lock(mutex_);
  if (!WaitForRoom(0, deadline)) {
    return Status(Code::kDeadlineExceeded,
                  fmt::format("the checkpoint of step {} is not durable yet",
                              in_flight_.front()->step.value()));
  }
  return last_outcome_;
}

Status SaveQueue::Health() const {
  MutexLock lock(mutex_);
  PERDURE_RETURN_IF_ERROR(fenced_);
  if (options_.stop_after > 0 && failed_in_a_row_ >= options_.stop_after) {
    return last_outcome_.WithContext(
        fmt::format("{} checkpoints failed in a row", failed_in_a_row_));
  }
  return Ok();
}

std::int64_t SaveQueue::begun() const {
  MutexLock lock(mutex_);
  return begun_;
}

Status SaveQueue::last_outcome() const {
  MutexLock lock(mutex_);
  return last_outcome_;
}

std::int64_t SaveQueue::last_committed_step() const {
  MutexLock lock(mutex_);
  return last_committed_;
}

Status SaveQueue::Close(Deadline deadline) {
  {
    MutexLock lock(mutex_);
    if (closed_) return last_outcome_;
  }
  const Status kept = PassFence(deadline);
  Status durable = Wait(deadline);
  if (durable.ok()) durable = kept;
  std::deque<std::shared_ptr<Job>> left;
  {
    MutexLock lock(mutex_);
    closing_ = true;
    left = in_flight_;
    changed_.NotifyAll();
  }
  exchange_.Stop();  // a save that is still in flight ends at its next wait
  for (const std::shared_ptr<Job>& job : left) {
    if (job->snapshot != nullptr) {
      job->snapshot->GiveUp(Status(Code::kAborted, "the checkpoint engine is closing"));
    }
  }
  saver_thread_.Join();
  capture_thread_.Join();
  MutexLock lock(mutex_);
  closed_ = true;
  if (!durable.ok()) last_outcome_ = durable;
  return durable;
}

}  // namespace perdure
