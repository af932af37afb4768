// Collectives with deadlines. A call never blocks for longer than its deadline and the abort that
// follows it; a failure is a value (Status with a CommFailure) that names the rank at fault.
//
// Threads: every member may be called from any thread. Operations of one communicator run in the
// order in which they were submitted. All ranks submit the same collectives in the same order; a
// send meets the recv of its peer, the first the first, and other ranks have no part in it. A send
// of more than a few KiB ends when the peer receives it, so two ranks that both send first wait for
// one another: let the lower rank send first.
//
// After a failure a communicator is broken for good: each later call fails at once with the first
// cause. The survivors may build another one in the same process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "perdure/clock.h"
#include "perdure/export.h"
#include "perdure/ids.h"
#include "perdure/status.h"
#include "perdure/tensor.h"

namespace perdure {

// kAverage divides by the number of ranks after the sum; for integers it truncates toward zero.
enum class ReduceOp : std::uint8_t { kSum, kAverage, kMin, kMax, kProduct };

// One operation in flight. The tensors it was given must stay in place until it is done.
class PERDURE_API Work {
 public:
  virtual ~Work() = default;
  // Done, failed, or kDeadlineExceeded when `deadline` passes first (the operation then goes on).
  virtual Status Wait(Deadline deadline) = 0;
  // Whether it has ended, well or not. Never blocks.
  virtual bool Test() const = 0;
};

class CommunicatorImpl;
class Communicator;
const CommunicatorImpl& ImplOf(const Communicator& communicator);  // for the library itself

class PERDURE_API Communicator {
 public:
  // For the library: see Session::world and Split.
  explicit Communicator(std::unique_ptr<CommunicatorImpl> impl);
  ~Communicator();  // aborts what is still in flight
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Rank rank() const;
  int size() const;
  const std::string& name() const;

  // `deadline` covers the operation from end to end: queued, waiting for peers, moving bytes.
  // Tensors are packed, on CPU. What only moves takes every dtype of whole bytes; reductions take
  // f64 f32 f16 bf16 i64 i32 i8 u8. Sums and products of f16 and bf16 are formed in f32 and rounded
  // once per hop. Results are bit-identical from run to run, and all_reduce gives every rank the
  // same bits. A bad argument gives a Work that has already failed and leaves the communicator
  // intact.
  std::shared_ptr<Work> AllReduce(const TensorView& in_place, ReduceOp op, Deadline deadline);
  // The result is on `root`; on the other ranks the tensor's content is undefined afterwards.
  std::shared_ptr<Work> Reduce(const TensorView& in_place, ReduceOp op, Rank root,
                               Deadline deadline);
  // `input` holds size() blocks like `output`; rank r gets block r, reduced over all ranks. They
  // do not overlap, except that `output` may be this rank's own block of `input`.
  std::shared_ptr<Work> ReduceScatter(const TensorView& input, const TensorView& output,
                                      ReduceOp op, Deadline deadline);
  std::shared_ptr<Work> Broadcast(const TensorView& in_place, Rank root, Deadline deadline);
  // `output` holds size() blocks like `input`, in rank order; `input` may be this rank's own.
  std::shared_ptr<Work> AllGather(const TensorView& input, const TensorView& output,
                                  Deadline deadline);
  // Both hold size() equal blocks and do not overlap: block r of `input` goes to rank r, and block
  // r of `output` comes from it.
  std::shared_ptr<Work> AllToAll(const TensorView& input, const TensorView& output,
                                 Deadline deadline);
  std::shared_ptr<Work> Send(const TensorView& tensor, Rank to, Deadline deadline);
  std::shared_ptr<Work> Recv(const TensorView& tensor, Rank from, Deadline deadline);
  std::shared_ptr<Work> Barrier(Deadline deadline);

  // Divides the members into smaller communicators, like MPI_Comm_split: every member calls it, in
  // the same order as its other collectives, and those with the same color form one, ordered by
  // key, then by rank here. A negative color takes part and gets null. kUnavailable or kCommFailed
  // when not all came within the deadline, naming them; this communicator then fails only if the
  // exchange of colors did. The new one shares this one's lane and patience, has failures of its
  // own, and must not outlive the session. The ranks that a failure names are always those of the
  // whole job.
  Result<std::unique_ptr<Communicator>> Split(std::int64_t color, std::int64_t key,
                                              Deadline deadline);

  // The deadline that an operation submitted now gets by default (see the table of patience in the
  // documentation).
  Deadline DefaultDeadline() const;

  // Ends everything in flight on this rank within milliseconds; all calls fail with `reason` from
  // then on. Peers see this rank leave and are told why.
  void Abort(const Status& reason);

  // OK while healthy, else the first cause.
  Status failure() const;

 private:
  friend const CommunicatorImpl& ImplOf(const Communicator& communicator);
  std::unique_ptr<CommunicatorImpl> impl_;
};

}  // namespace perdure
