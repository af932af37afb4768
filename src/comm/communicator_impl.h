// Behind Communicator: checks calls, numbers them, keeps the records, and turns a backend's trouble
// into one verdict. The only caller of backends.
//
// The life of an operation: 1 Submit checks it, gives it the next number, records it and puts it on
// the lane; 2 the lane runs it through the backend; 3 done: recorded, and its Work is told. Or
// trouble: the arbiter gives the verdict, the communicator is broken for good, its Work and all
// later ones fail with that cause, and only then are the connections closed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "comm/backend.h"
#include "comm/failure_arbiter.h"
#include "comm/flight_recorder.h"
#include "comm/group.h"
#include "comm/lane.h"
#include "comm/operation.h"
#include "control/key_value.h"
#include "control/messages.h"
#include "perdure/comm.h"

namespace perdure {

// See the table of patience in the documentation.
struct Patience {
  Duration not_joined = std::chrono::seconds(300);  // somebody has not arrived
  Duration running = std::chrono::seconds(120);     // all have
};

// What the process wants to know of its communicators. Outlives them and every Work.
class CommObserver {
 public:
  virtual ~CommObserver() = default;
  // The first cause, before any connection is closed. Any thread; must not block.
  virtual void OnFailed(const Status& cause) = 0;
  // The calling thread begins (true) or ends (false) to wait for an operation that is not done.
  virtual void OnWait(bool begins) = 0;
};

// Connects the members of a group of more than one; every member calls it.
using Connector =
    std::function<Result<std::unique_ptr<Backend>>(const Group& group, Deadline deadline)>;

// What the process has once. Everything outlives the communicators.
struct CommunicatorParts {
  KeyValue& store;
  FailureArbiter& arbiter;
  Lane& lane;
  FlightRecorder& recorder;
  const Clock& clock;
  CommObserver* observer = nullptr;
  Connector connect = nullptr;  // none: over Gloo
};

class CommunicatorImpl final : public ArbitratedChannel {
 public:
  CommunicatorImpl(Group group, Patience patience, std::unique_ptr<Backend> backend,
                   CommunicatorParts parts);
  // Aborts what is in flight; with nothing in flight, leaves in good order.
  ~CommunicatorImpl() override;

  const Group& group() const { return group_; }
  const Patience& patience() const { return patience_; }
  const CommunicatorParts& parts() const { return parts_; }
  std::shared_ptr<Work> Submit(const Call& call, const TensorView& input, const TensorView& output,
                               Deadline deadline);
  std::shared_ptr<Work> SubmitBarrier(Deadline deadline);
  Deadline DefaultDeadline() const;
  void Abort(const Status& reason);
  Status failure() const;
  // The number of this call of Split among all of this communicator.
  std::uint64_t CountSplit() { return splits_.fetch_add(1) + 1; }

  // ArbitratedChannel.
  const std::string& id() const override { return group_.id; }
  const std::string& name() const override { return group_.name; }
  bool Has(Rank rank) const override { return group_.Has(rank); }
  CommProgress progress() const override;
  Standing standing() const override;
  void OnVerdict(const Verdict& verdict) override;
  void OnPeerDead() override;

 private:
  class WorkImpl;
  class CloseTask;

  Result<Operation> Check(const Call& call, const TensorView& input,
                          const TensorView& output) const;
  std::shared_ptr<Work> Enqueue(Operation operation, Deadline deadline);
  // The counter that gives an operation its number.
  std::uint64_t Last(const Call& call) const PERDURE_REQUIRES(submit_mutex_);
  void SetLast(const Call& call, std::uint64_t number) PERDURE_REQUIRES(submit_mutex_);
  // Lane thread.
  void Execute(WorkImpl& work);
  void OnTrouble(const Trouble& trouble, WorkImpl* work);
  // Tells the peers why (when this rank was told to abort), then closes. Once. Lane thread, or the
  // destructor.
  void TellAndClose();

  // True when this is the first cause.
  bool Fail(const Status& status, const Verdict& verdict);
  Status StatusOf(const Verdict& verdict, const WorkImpl* work) const;

  const Group group_;
  const Patience patience_;
  const CommunicatorParts parts_;
  const std::uint32_t recorder_id_;  // names this communicator in the records
  const std::unique_ptr<Backend> backend_;

  // Order of submission.
  Mutex submit_mutex_;
  std::vector<std::uint64_t> sends_ PERDURE_GUARDED_BY(submit_mutex_);  // by peer: its last number
  std::vector<std::uint64_t> recvs_ PERDURE_GUARDED_BY(submit_mutex_);
  std::atomic<std::uint64_t> unfinished_{0};  // operations of every kind
  // Collectives alone, which all ranks count alike.
  std::atomic<std::uint64_t> submitted_{0};
  std::atomic<std::uint64_t> started_{0};
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<std::uint64_t> signature_{0};
  std::atomic<std::uint64_t> bytes_done_{0};  // of the operation that runs
  std::atomic<int> waits_for_{-1};            // its peer in the job, if it is a send or recv
  std::atomic<std::uint64_t> splits_{0};

  std::atomic<bool> failed_{false};
  mutable Mutex failure_mutex_;
  Status failure_ PERDURE_GUARDED_BY(failure_mutex_);
  std::optional<Verdict> verdict_ PERDURE_GUARDED_BY(failure_mutex_);  // none: aborted here
  Call current_ PERDURE_GUARDED_BY(failure_mutex_);                    // runs, or ran last
  bool aborted_here_ PERDURE_GUARDED_BY(failure_mutex_) = false;

  // Lane thread; the destructor once the lane has dropped us.
  bool closed_ = false;
};

}  // namespace perdure
