#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "base/log.h"
#include "comm/communicator_impl.h"
#include "comm/reduce.h"

namespace perdure {
namespace {

using std::chrono::seconds;

// How long leaving in good order may take to push out the last bytes.
constexpr seconds kGoodbyeWait{2};

class FailedWork final : public Work {
 public:
  explicit FailedWork(Status status) : status_(std::move(status)) {}
  Status Wait(Deadline /*deadline*/) override { return status_; }
  bool Test() const override { return true; }

 private:
  const Status status_;
};

bool Packed(const TensorView& view) {
  if (view.strides.empty()) return true;
  if (view.strides.size() != view.shape.size()) return false;
  std::int64_t expected = 1;
  for (std::size_t i = view.shape.size(); i-- > 0;) {
    if (view.shape[i] != 1 && view.strides[i] != expected) return false;
    expected *= view.shape[i];
  }
  return true;
}

Status CheckView(const Call& call, std::string_view what, const TensorView& view) {
  const auto wrong = [&](const std::string& why) {
    return Status(Code::kInvalidArgument, fmt::format("{}: {}", what, why));
  };
  if (view.device != DeviceKind::kCpu) return wrong("the tensor is not in CPU memory");
  const int bits = BitsOf(view.dtype);
  if (Reduces(call.verb) && !CanReduce(view.dtype)) {
    return wrong(
        fmt::format("dtype {} is not one of F64 F32 F16 BF16 I64 I32 I8 U8", NameOf(view.dtype)));
  }
  if (bits % 8 != 0) {
    return wrong(
        fmt::format("dtype {} has no whole bytes; view the memory as U8", NameOf(view.dtype)));
  }
  if (!Packed(view)) return wrong("the tensor is not packed; make it contiguous first");
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t bytes, ByteCount(view.dtype, view.shape));
  if (bytes > 0 && view.data == nullptr) return wrong("the tensor has no memory");
  const auto width = static_cast<std::uintptr_t>(bits / 8);
  if (Reduces(call.verb) && reinterpret_cast<std::uintptr_t>(view.data) % width != 0) {
    return wrong(fmt::format("the tensor's memory is not aligned to its {} bytes", width));
  }
  return Ok();
}

// The rank that a call names is there, and another one when it sends or receives.
Status CheckRoot(const Call& call, int self, int size) {
  const std::string_view name = NameOf(call.verb);
  if (IsPointToPoint(call.verb) && call.root == self) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: rank {} is this rank itself", name, call.root));
  }
  if (call.root >= 0 && call.root < size) return Ok();
  return Status(Code::kInvalidArgument,
                fmt::format("{}: {} {} is not a rank of 0..{}", name,
                            IsPointToPoint(call.verb) ? "peer" : "root", call.root, size - 1));
}

// `whole` holds `size` blocks of `count` elements.
Status CheckBlocks(const Call& call, std::string_view what, const TensorView& whole,
                   std::int64_t count, int size) {
  PERDURE_RETURN_IF_ERROR(CheckView(call, what, whole));
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t held, ElementCount(whole.shape));
  if (whole.dtype == call.dtype && held % size == 0 && held / size == count) return Ok();
  return Status(Code::kInvalidArgument,
                fmt::format("{} holds {} x {}; {} ranks of {} x {} need {} x {} there", what,
                            NameOf(whole.dtype), held, size, NameOf(call.dtype), count,
                            NameOf(call.dtype), count * size));
}

std::atomic<std::uint32_t> next_recorder_id{1};

}  // namespace

// One submitted operation: the caller's Work and the lane's task in one.
class CommunicatorImpl::WorkImpl final : public Work, public LaneTask {
 public:
  WorkImpl(CommunicatorImpl& communicator, Operation operation, Deadline deadline,
           std::uint64_t ticket)
      : communicator_(communicator),
        observer_(communicator.parts_.observer),
        operation(operation),
        deadline(deadline),
        ticket(ticket) {}

  Status Wait(Deadline until) override {
    if (observer_ == nullptr || done_.load()) return Await(until);
    observer_->OnWait(true);
    Status status = Await(until);
    observer_->OnWait(false);
    return status;
  }
  bool Test() const override { return done_.load(); }

  void Complete(const Status& status) {
    MutexLock lock(mutex_);
    status_ = status;
    done_.store(true);
    changed_.NotifyAll();
  }

  void Run() override { communicator_.Execute(*this); }
  const void* owner() const override { return &communicator_; }

 private:
  Status Await(Deadline until) {
    MutexLock lock(mutex_);
    while (!done_.load()) {
      if (!changed_.WaitUntil(mutex_, until) && !done_.load()) {
        return Status(
            Code::kDeadlineExceeded,
            fmt::format("{} (operation {}) goes on", Describe(operation.call), operation.sequence));
      }
    }
    return status_;
  }

  CommunicatorImpl& communicator_;  // alive while this is on the lane
  CommObserver* const observer_;

 public:
  const Operation operation;
  const Deadline deadline;
  const std::uint64_t ticket;

 private:
  Mutex mutex_;
  CondVar changed_;
  std::atomic<bool> done_{false};
  Status status_ PERDURE_GUARDED_BY(mutex_);
};

// Runs on the lane when a communicator fails while none of its operations may be running.
class CommunicatorImpl::CloseTask final : public LaneTask {
 public:
  explicit CloseTask(CommunicatorImpl& communicator) : communicator_(communicator) {}
  void Run() override {
    if (communicator_.failed_.load()) {
      communicator_.TellAndClose();
    } else {
      communicator_.OnTrouble({.kind = Trouble::Kind::kWoken}, nullptr);
    }
  }
  const void* owner() const override { return &communicator_; }

 private:
  CommunicatorImpl& communicator_;
};

CommunicatorImpl::CommunicatorImpl(Group group, Patience patience, std::unique_ptr<Backend> backend,
                                   CommunicatorParts parts)
    : group_(std::move(group)),
      patience_(patience),
      parts_(std::move(parts)),
      recorder_id_(next_recorder_id.fetch_add(1)),
      backend_(std::move(backend)),
      sends_(group_.members.size()),
      recvs_(group_.members.size()) {
  parts_.arbiter.Join(*this);
}

CommunicatorImpl::~CommunicatorImpl() {
  if (unfinished_.load() > 0 && !failed_.load()) {
    Abort(Status(Code::kAborted, "the communicator was destroyed with operations in flight"));
  }
  parts_.arbiter.Leave(*this);
  for (const auto& task : parts_.lane.Drop(this)) {
    if (auto* work = dynamic_cast<WorkImpl*>(task.get())) work->Complete(failure());
  }
  // The lane has no task of ours and gets none: this thread takes its place.
  TellAndClose();
}

Result<Operation> CommunicatorImpl::Check(const Call& call, const TensorView& input,
                                          const TensorView& output) const {
  PERDURE_RETURN_IF_ERROR(CheckRoot(call, group_.rank, group_.size()));
  const std::string name(NameOf(call.verb));
  // What holds one block; all_to_all has none such.
  const TensorView& block = call.verb == Verb::kReduceScatter ? output : input;
  PERDURE_RETURN_IF_ERROR(CheckView(call, name, block));
  Operation operation{.call = call, .input = input.data, .output = output.data};
  operation.call.dtype = block.dtype;
  PERDURE_ASSIGN_OR_RETURN(std::int64_t count, ElementCount(block.shape));
  if (call.verb == Verb::kAllToAll) count /= group_.size();
  operation.call.count = static_cast<std::uint64_t>(count);
  operation.bytes =
      static_cast<std::size_t>(count) * static_cast<std::size_t>(BitsOf(block.dtype) / 8);
  if (call.verb == Verb::kReduceScatter || call.verb == Verb::kAllToAll) {
    PERDURE_RETURN_IF_ERROR(
        CheckBlocks(operation.call, name + " input", input, count, group_.size()));
  }
  if (call.verb == Verb::kAllGather || call.verb == Verb::kAllToAll) {
    PERDURE_RETURN_IF_ERROR(
        CheckBlocks(operation.call, name + " output", output, count, group_.size()));
  }
  return operation;
}

std::shared_ptr<Work> CommunicatorImpl::Submit(const Call& call, const TensorView& input,
                                               const TensorView& output, Deadline deadline) {
  const Result<Operation> operation = Check(call, input, output);
  if (!operation.ok()) return std::make_shared<FailedWork>(operation.status());
  return Enqueue(*operation, deadline);
}

std::shared_ptr<Work> CommunicatorImpl::SubmitBarrier(Deadline deadline) {
  return Enqueue(Operation{}, deadline);
}

std::shared_ptr<Work> CommunicatorImpl::Enqueue(Operation operation, Deadline deadline) {
  if (failed_.load()) return std::make_shared<FailedWork>(failure());
  MutexLock lock(submit_mutex_);
  operation.sequence = Last(operation.call) + 1;
  const std::uint64_t ticket =
      parts_.recorder.Submitted(recorder_id_, operation, parts_.clock.Now());
  auto work = std::make_shared<WorkImpl>(*this, operation, deadline, ticket);
  // Before the lane can finish it, so that `completed` never passes `submitted`.
  SetLast(operation.call, operation.sequence);
  unfinished_.fetch_add(1);
  if (!parts_.lane.Submit(work)) {
    unfinished_.fetch_sub(1);
    SetLast(operation.call, operation.sequence - 1);
    parts_.recorder.Completed(ticket, parts_.clock.Now(), true);
    return std::make_shared<FailedWork>(
        Status(Code::kResourceExhausted,
               fmt::format("{} operations wait already; wait for some before submitting {}",
                           kLaneDepthMax, Describe(operation.call))));
  }
  if (operation.peer() < 0) {
    signature_.store(SignatureOf(operation.call), std::memory_order_relaxed);
  }
  return work;
}

std::uint64_t CommunicatorImpl::Last(const Call& call) const {
  if (!IsPointToPoint(call.verb)) return submitted_.load(std::memory_order_relaxed);
  return (call.verb == Verb::kSend ? sends_ : recvs_)[static_cast<std::size_t>(call.root)];
}

void CommunicatorImpl::SetLast(const Call& call, std::uint64_t number) {
  if (!IsPointToPoint(call.verb)) {
    submitted_.store(number);
  } else {
    (call.verb == Verb::kSend ? sends_ : recvs_)[static_cast<std::size_t>(call.root)] = number;
  }
}

void CommunicatorImpl::Execute(WorkImpl& work) {
  if (failed_.load()) {
    parts_.recorder.Completed(work.ticket, parts_.clock.Now(), true);
    work.Complete(failure());
    unfinished_.fetch_sub(1);
    TellAndClose();
    return;
  }
  {
    MutexLock lock(failure_mutex_);
    current_ = work.operation.call;
  }
  const int peer = work.operation.peer();
  if (peer < 0) started_.store(work.operation.sequence);
  waits_for_.store(peer < 0 ? -1 : static_cast<int>(group_.JobRank(peer).value()));
  bytes_done_.store(0, std::memory_order_relaxed);
  parts_.recorder.Started(work.ticket, parts_.clock.Now());
  const Budget budget{work.deadline, patience_.not_joined, patience_.running};
  const std::optional<Trouble> trouble = backend_->Run(work.operation, budget, bytes_done_);
  parts_.recorder.Completed(work.ticket, parts_.clock.Now(), trouble.has_value());
  if (trouble.has_value()) {
    OnTrouble(*trouble, &work);
    waits_for_.store(-1);
    unfinished_.fetch_sub(1);
    return;
  }
  waits_for_.store(-1);
  if (peer < 0) completed_.store(work.operation.sequence);
  // Last: who waits for it may destroy the communicator, and nothing is in flight then.
  unfinished_.fetch_sub(1);
  work.Complete(Ok());
}

void CommunicatorImpl::OnTrouble(const Trouble& trouble, WorkImpl* work) {
  // Aborted here, or the verdict came from elsewhere: then it is known already.
  if (!failed_.load()) {
    FailureArbiter::Evidence evidence;
    evidence.own.by_rank = static_cast<int>(group_.self().value());
    if (work != nullptr) {
      evidence.own.sequence = work->operation.sequence;
      evidence.own.operation = Describe(work->operation.call);
      evidence.waits_for = waits_for_.load();
    }
    evidence.mismatch = trouble.kind == Trouble::Kind::kMismatch;
    evidence.deadline = trouble.kind == Trouble::Kind::kDeadline;
    evidence.all_joined = trouble.all_joined;
    evidence.members = group_.members;
    const auto host = std::find(group_.members.begin(), group_.members.end(), Rank(0));
    const auto host_member = static_cast<int>(host - group_.members.begin());
    evidence.store_host_lost =
        host != group_.members.end() && host_member != group_.rank && backend_->Lost(host_member);
    using Class = CommFailure::Class;
    const auto accuse = [&](Class failure_class, Rank rank, const std::string& why) {
      evidence.own.failure_class = failure_class;
      evidence.own.suspects.push_back({rank, why});
    };
    switch (trouble.kind) {
      case Trouble::Kind::kPeerClosed:
        accuse(Class::kPeerDead, group_.JobRank(trouble.peer),
               "its connection closed without a word");
        break;
      case Trouble::Kind::kPeerLeft:
        accuse(Class::kNotJoined, group_.JobRank(trouble.peer),
               "it left in good order before this operation");
        break;
      case Trouble::Kind::kMismatch:
        accuse(Class::kMismatch, group_.JobRank(trouble.peer), trouble.text);
        if (evidence.waits_for >= 0) {
          accuse(Class::kMismatch, group_.self(), "it called " + evidence.own.operation);
        }
        break;
      case Trouble::Kind::kDeadline:
        evidence.own.failure_class = trouble.all_joined ? Class::kTimeout : Class::kNotJoined;
        break;
      case Trouble::Kind::kWoken:
      case Trouble::Kind::kLocal:
        accuse(Class::kLocalError, group_.self(),
               trouble.text.empty() ? "it was interrupted" : trouble.text);
        break;
    }
    const Verdict verdict = parts_.arbiter.Judge(group_.id, evidence);
    Fail(StatusOf(verdict, work), verdict);
  }
  if (work != nullptr) {
    std::optional<Verdict> verdict;
    {
      MutexLock lock(failure_mutex_);
      verdict = verdict_;
    }
    work->Complete(verdict.has_value() ? StatusOf(*verdict, work) : failure());
  }
  TellAndClose();
}

void CommunicatorImpl::TellAndClose() {
  if (std::exchange(closed_, true)) return;
  bool tell = false;
  std::string reason;
  {
    MutexLock lock(failure_mutex_);
    tell = aborted_here_;
    reason = failure_.message();
  }
  if (tell) {
    FailureArbiter::Evidence evidence;
    evidence.members = group_.members;
    evidence.own.failure_class = CommFailure::Class::kAborted;
    evidence.own.by_rank = static_cast<int>(group_.self().value());
    evidence.own.sequence = started_.load();
    evidence.own.suspects = {{group_.self(), "it left: " + reason}};
    parts_.arbiter.Judge(group_.id, evidence);
  }
  backend_->Close(!failed_.load(), Deadline::After(kGoodbyeWait));
}

bool CommunicatorImpl::Fail(const Status& status, const Verdict& verdict) {
  {
    MutexLock lock(failure_mutex_);
    if (!failure_.ok()) return false;
    failure_ = status;
    verdict_ = verdict;
    failed_.store(true);
  }
  if (parts_.observer != nullptr) parts_.observer->OnFailed(status);
  backend_->Wake();
  return true;
}

Status CommunicatorImpl::StatusOf(const Verdict& verdict, const WorkImpl* work) const {
  CommFailure failure;
  failure.failure_class = verdict.failure_class;
  failure.communicator = group_.name;
  failure.sequence = work != nullptr ? work->operation.sequence : started_.load();
  failure.operation = work != nullptr ? Describe(work->operation.call) : verdict.operation;
  failure.bytes_done = work != nullptr ? bytes_done_.load(std::memory_order_relaxed) : 0;
  failure.suspects = verdict.suspects;
  const std::string operation =
      failure.operation.empty() ? "between operations" : failure.operation;
  std::string message = fmt::format(
      "communicator {}: {} (operation {}, {} bytes received) failed on rank {}: {}", group_.name,
      operation, failure.sequence, failure.bytes_done, group_.self().value(), Sentence(verdict));
  return Status(std::move(failure), std::move(message));
}

Deadline CommunicatorImpl::DefaultDeadline() const {
  return Deadline::After(patience_.not_joined + patience_.running, parts_.clock);
}

void CommunicatorImpl::Abort(const Status& reason) {
  CommFailure failure;
  failure.failure_class = CommFailure::Class::kAborted;
  failure.communicator = group_.name;
  failure.sequence = started_.load();
  failure.suspects = {{group_.self(), reason.message()}};
  {
    MutexLock lock(failure_mutex_);
    if (!failure_.ok()) return;
    failure_ = Status(std::move(failure), reason.message());
    aborted_here_ = true;
    failed_.store(true);
  }
  backend_->Wake();
  // Told and closed on the lane, which may take a moment.
  parts_.lane.SubmitAlways(std::make_shared<CloseTask>(*this));
}

Status CommunicatorImpl::failure() const {
  MutexLock lock(failure_mutex_);
  return failure_;
}

CommProgress CommunicatorImpl::progress() const {
  return {group_.name, submitted_.load(), started_.load(), completed_.load(), signature_.load()};
}

Standing CommunicatorImpl::standing() const {
  MutexLock lock(failure_mutex_);
  return {true,
          submitted_.load(),
          started_.load(),
          completed_.load(),
          Describe(current_),
          waits_for_.load()};
}

void CommunicatorImpl::OnVerdict(const Verdict& verdict) {
  if (Fail(StatusOf(verdict, nullptr), verdict)) {
    parts_.lane.SubmitAlways(std::make_shared<CloseTask>(*this));
  }
}

void CommunicatorImpl::OnPeerDead() {
  backend_->Wake();
  parts_.lane.SubmitAlways(std::make_shared<CloseTask>(*this));
}

Communicator::Communicator(std::unique_ptr<CommunicatorImpl> impl) : impl_(std::move(impl)) {}
Communicator::~Communicator() = default;

const CommunicatorImpl& ImplOf(const Communicator& communicator) {
  return *communicator.impl_;
}

Rank Communicator::rank() const {
  return Rank(impl_->group().rank);
}
int Communicator::size() const {
  return impl_->group().size();
}
const std::string& Communicator::name() const {
  return impl_->group().name;
}

std::shared_ptr<Work> Communicator::AllReduce(const TensorView& in_place, ReduceOp op,
                                              Deadline deadline) {
  return impl_->Submit({.verb = Verb::kAllReduce, .reduce = op}, in_place, in_place, deadline);
}
std::shared_ptr<Work> Communicator::Reduce(const TensorView& in_place, ReduceOp op, Rank root,
                                           Deadline deadline) {
  return impl_->Submit(
      {.verb = Verb::kReduce, .reduce = op, .root = static_cast<std::int32_t>(root.value())},
      in_place, in_place, deadline);
}
std::shared_ptr<Work> Communicator::ReduceScatter(const TensorView& input, const TensorView& output,
                                                  ReduceOp op, Deadline deadline) {
  return impl_->Submit({.verb = Verb::kReduceScatter, .reduce = op}, input, output, deadline);
}
std::shared_ptr<Work> Communicator::AllToAll(const TensorView& input, const TensorView& output,
                                             Deadline deadline) {
  return impl_->Submit({.verb = Verb::kAllToAll}, input, output, deadline);
}
std::shared_ptr<Work> Communicator::Send(const TensorView& tensor, Rank to, Deadline deadline) {
  return impl_->Submit({.verb = Verb::kSend, .root = static_cast<std::int32_t>(to.value())}, tensor,
                       tensor, deadline);
}
std::shared_ptr<Work> Communicator::Recv(const TensorView& tensor, Rank from, Deadline deadline) {
  return impl_->Submit({.verb = Verb::kRecv, .root = static_cast<std::int32_t>(from.value())},
                       tensor, tensor, deadline);
}
std::shared_ptr<Work> Communicator::Broadcast(const TensorView& in_place, Rank root,
                                              Deadline deadline) {
  return impl_->Submit({.verb = Verb::kBroadcast, .root = static_cast<std::int32_t>(root.value())},
                       in_place, in_place, deadline);
}
std::shared_ptr<Work> Communicator::AllGather(const TensorView& input, const TensorView& output,
                                              Deadline deadline) {
  return impl_->Submit({.verb = Verb::kAllGather}, input, output, deadline);
}
std::shared_ptr<Work> Communicator::Barrier(Deadline deadline) {
  return impl_->SubmitBarrier(deadline);
}
Deadline Communicator::DefaultDeadline() const {
  return impl_->DefaultDeadline();
}
void Communicator::Abort(const Status& reason) {
  impl_->Abort(reason);
}
Status Communicator::failure() const {
  return impl_->failure();
}

}  // namespace perdure
