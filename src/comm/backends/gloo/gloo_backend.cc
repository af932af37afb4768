// The collectives, on Gloo's unbound buffers.
//
// Every operation begins with a frame that says what it is; nobody believes a payload before the
// frame in front of it was compared with its own call. Small tensors travel in the frame itself:
//   all_reduce  recursive doubling; ranks beyond a power of two fold into a neighbour first
//   broadcast   a binomial tree
//   all_gather  everyone to everyone
//   barrier     dissemination
// Large ones follow the frame as bulk data, in segments along a ring (ring_plan.h): a segment is
// passed on while the next one arrives. A rank posts kWindow receives ahead and no more.
//
// Results are the same bits on all ranks and in every run: in recursive doubling both partners
// combine the same two values with the lower rank's first, and in the ring each chunk is completed
// in one place, in ring order, and then copied.
// Source: Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in
// MPICH, Int. J. High Perform. Comput. Appl. 19 (2005).
#include "comm/backends/gloo/gloo_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "comm/backends/gloo/mesh.h"
#include "comm/backends/gloo/ring_plan.h"
#include "comm/reduce.h"

namespace perdure {
namespace {

constexpr std::size_t kSegmentBytesMax = 256 * 1024;
constexpr int kWindow = 4;

using MaybeTrouble = std::optional<Trouble>;

// What one operation carries along.
struct Course {
  const Operation& operation;
  const Budget& budget;
  std::atomic<std::uint64_t>& bytes_done;
  Deadline limit;  // the earlier of the caller's and what the budget allows in this state
  bool all_joined = false;

  void AllJoined() {
    if (std::exchange(all_joined, true)) return;
    limit = Earlier(budget.end, Deadline::After(budget.running));
  }
  void Received(std::size_t bytes) { bytes_done.fetch_add(bytes, std::memory_order_relaxed); }
};

class GlooBackend final : public Backend {
 public:
  explicit GlooBackend(std::unique_ptr<Mesh> mesh)
      : mesh_(std::move(mesh)), rank_(mesh_->place().rank), size_(mesh_->place().size) {}

  MaybeTrouble Run(const Operation& operation, const Budget& budget,
                   std::atomic<std::uint64_t>& bytes_done) override {
    Course course{operation, budget, bytes_done,
                  Earlier(budget.end, Deadline::After(budget.not_joined))};
    const bool small = operation.bytes <= kEagerBytesMax;
    switch (operation.call.verb) {
      case Verb::kAllReduce:
        return small ? AllReduceDoubling(course) : AllReduceRing(course);
      case Verb::kBroadcast:
        return small ? BroadcastTree(course) : BroadcastChain(course);
      case Verb::kAllGather:
        return small ? AllGatherDirect(course) : AllGatherRing(course);
      case Verb::kBarrier:
        return Disseminate(course);
    }
    return Trouble{.kind = Trouble::Kind::kLocal, .peer = rank_, .text = "an unknown verb"};
  }

  void Wake() override { mesh_->Stop(); }
  bool Lost(int peer) const override { return mesh_->Lost(peer); }
  void Close(bool in_order, Deadline deadline) override { mesh_->Close(in_order, deadline); }

 private:
  // ---------------------------------------------------------------- one exchange

  MaybeTrouble From(WaitOutcome outcome, int peer, const Course& course) const {
    if (outcome == WaitOutcome::kDone) return std::nullopt;
    if (outcome == WaitOutcome::kLate) {
      return Trouble{
          .kind = Trouble::Kind::kDeadline, .peer = peer, .all_joined = course.all_joined};
    }
    return mesh_->Explain(peer);
  }

  MaybeTrouble Send(Course& course, int peer, int round, const void* payload, std::size_t bytes) {
    FrameHeader header;
    header.round = static_cast<std::uint8_t>(round);
    header.sequence = course.operation.sequence;
    header.call = course.operation.call;
    return From(mesh_->SendFrame(peer, header, payload, bytes, course.limit), peer, course);
  }

  // The peer's frame of this operation is there and says the same as ours; ReleaseFrame follows.
  MaybeTrouble Receive(Course& course, int peer, int round, std::size_t bytes) {
    if (MaybeTrouble trouble = From(mesh_->AwaitFrame(peer, course.limit), peer, course)) {
      return trouble;
    }
    const FrameHeader& header = mesh_->frame(peer);
    if (header.kind == FrameKind::kGoodbye) {
      return Trouble{.kind = Trouble::Kind::kPeerLeft, .peer = peer};
    }
    const Operation& mine = course.operation;
    if (header.sequence != mine.sequence || !(header.call == mine.call) || header.round != round ||
        header.payload_bytes != bytes) {
      return Trouble{
          .kind = Trouble::Kind::kMismatch,
          .peer = peer,
          .text = fmt::format("it called {} as operation {}, rank {} called {} as operation {}",
                              Describe(header.call), header.sequence, rank_, Describe(mine.call),
                              mine.sequence)};
    }
    course.Received(bytes);
    return std::nullopt;
  }

  int Wrap(int rank) const { return ((rank % size_) + size_) % size_; }

  // ---------------------------------------------------------------- small

  MaybeTrouble Disseminate(Course& course) {
    int round = 0;
    for (int distance = 1; distance < size_; distance *= 2, ++round) {
      if (auto trouble = Send(course, Wrap(rank_ + distance), round, nullptr, 0)) return trouble;
      const int from = Wrap(rank_ - distance);
      if (auto trouble = Receive(course, from, round, 0)) return trouble;
      mesh_->ReleaseFrame(from);
    }
    return std::nullopt;
  }

  MaybeTrouble AllReduceDoubling(Course& course) {
    const Operation& operation = course.operation;
    const Call& call = operation.call;
    void* const data = operation.output;
    int doubling = 1;
    while (2 * doubling <= size_) doubling *= 2;
    const int extra = size_ - doubling;  // that many pairs fold into one at the lower end
    constexpr int kFold = 100;
    constexpr int kUnfold = 101;

    if (rank_ < 2 * extra && rank_ % 2 == 1) {
      if (auto trouble = Send(course, rank_ - 1, kFold, data, operation.bytes)) return trouble;
      if (auto trouble = Receive(course, rank_ - 1, kUnfold, operation.bytes)) return trouble;
      if (operation.bytes > 0) std::memcpy(data, mesh_->payload(rank_ - 1), operation.bytes);
      mesh_->ReleaseFrame(rank_ - 1);
      return std::nullopt;
    }
    const bool averages = call.reduce == ReduceOp::kAverage;
    const bool folds = rank_ < 2 * extra;
    if (folds) {
      if (auto trouble = Receive(course, rank_ + 1, kFold, operation.bytes)) return trouble;
      Combine(call.dtype, call.reduce, data, data, mesh_->payload(rank_ + 1), call.count,
              averages && doubling == 1 ? size_ : 1);
      mesh_->ReleaseFrame(rank_ + 1);
    }
    const int place = folds ? rank_ / 2 : rank_ - extra;
    int round = 0;
    for (int mask = 1; mask < doubling; mask *= 2, ++round) {
      const int partner_place = place ^ mask;
      const int partner = partner_place < extra ? 2 * partner_place : partner_place + extra;
      if (auto trouble = Send(course, partner, round, data, operation.bytes)) return trouble;
      if (auto trouble = Receive(course, partner, round, operation.bytes)) return trouble;
      const char* const theirs = mesh_->payload(partner);
      const int divisor = averages && 2 * mask == doubling ? size_ : 1;
      if (partner < rank_) {
        Combine(call.dtype, call.reduce, data, theirs, data, call.count, divisor);
      } else {
        Combine(call.dtype, call.reduce, data, data, theirs, call.count, divisor);
      }
      mesh_->ReleaseFrame(partner);
    }
    if (folds) return Send(course, rank_ + 1, kUnfold, data, operation.bytes);
    return std::nullopt;
  }

  MaybeTrouble BroadcastTree(Course& course) {
    const Operation& operation = course.operation;
    const int relative = Wrap(rank_ - operation.call.root);
    int mask = 1;
    for (; mask < size_; mask *= 2) {
      if ((relative & mask) == 0) continue;
      const int from = Wrap(rank_ - mask);
      if (auto trouble = Receive(course, from, 0, operation.bytes)) return trouble;
      if (operation.bytes > 0) {
        std::memcpy(operation.output, mesh_->payload(from), operation.bytes);
      }
      mesh_->ReleaseFrame(from);
      break;
    }
    for (mask /= 2; mask > 0; mask /= 2) {
      if (relative + mask >= size_) continue;
      if (auto trouble = Send(course, Wrap(rank_ + mask), 0, operation.output, operation.bytes)) {
        return trouble;
      }
    }
    return std::nullopt;
  }

  MaybeTrouble AllGatherDirect(Course& course) {
    const Operation& operation = course.operation;
    const std::size_t bytes = operation.bytes;
    auto* const output = static_cast<char*>(operation.output);
    const auto block = [&](int rank) { return output + static_cast<std::size_t>(rank) * bytes; };
    if (bytes > 0 && block(rank_) != operation.input) {
      std::memmove(block(rank_), operation.input, bytes);
    }
    for (int distance = 1; distance < size_; ++distance) {
      if (auto trouble = Send(course, Wrap(rank_ + distance), 0, block(rank_), bytes)) {
        return trouble;
      }
    }
    for (int distance = 1; distance < size_; ++distance) {
      const int from = Wrap(rank_ - distance);
      if (auto trouble = Receive(course, from, 0, bytes)) return trouble;
      if (bytes > 0) std::memcpy(block(from), mesh_->payload(from), bytes);
      mesh_->ReleaseFrame(from);
    }
    return std::nullopt;
  }

  // ---------------------------------------------------------------- large

  // A pipeline from the left neighbour to the right one: `leading` messages may be sent at once,
  // and message m + leading when message m has been received and treated.
  struct Pipeline {
    int left = -1;   // none: nothing is received
    int right = -1;  // none: nothing is sent
    int leading = 0;
    int received = 0;  // messages
    int sent = 0;
  };

  // RecvAt(m) -> {buffer, piece}; OnReceived(m, piece); SendAt(m) -> {buffer, piece}.
  template <class RecvAt, class OnReceived, class SendAt>
  MaybeTrouble RunPipeline(Course& course, const Pipeline& pipe, const RecvAt& recv_at,
                           const OnReceived& on_received, const SendAt& send_at) {
    std::vector<WaitableBuffer*> under_way;
    const auto post_recv = [&](int message) -> MaybeTrouble {
      const auto [buffer, piece] = recv_at(message);
      if (piece.bytes == 0 || mesh_->PostRecv(*buffer, pipe.left, piece.offset, piece.bytes)) {
        return std::nullopt;
      }
      return mesh_->Explain(pipe.left);
    };
    const auto post_send = [&](int message) -> MaybeTrouble {
      const auto [buffer, piece] = send_at(message);
      if (piece.bytes == 0) return std::nullopt;
      if (!mesh_->PostSend(*buffer, pipe.right, piece.offset, piece.bytes)) {
        return mesh_->Explain(pipe.right);
      }
      under_way.push_back(buffer);
      return std::nullopt;
    };

    if (pipe.sent > 0) {
      if (auto trouble = Send(course, pipe.right, 0, nullptr, 0)) return trouble;
    }
    for (int m = 0; m < std::min(pipe.leading, pipe.sent); ++m) {
      if (auto trouble = post_send(m)) return trouble;
    }
    if (pipe.received > 0) {
      if (auto trouble = Receive(course, pipe.left, 0, 0)) return trouble;
      mesh_->ReleaseFrame(pipe.left);
    }
    // Not before the frame was compared: a message longer than its buffer makes Gloo break the
    // connection, which would look like a death to the peer.
    for (int m = 0; m < std::min(kWindow, pipe.received); ++m) {
      if (auto trouble = post_recv(m)) return trouble;
    }
    for (int m = 0; m < pipe.received; ++m) {
      const auto [buffer, piece] = recv_at(m);
      if (piece.bytes > 0) {
        if (auto trouble = From(mesh_->AwaitRecv(*buffer, course.limit), pipe.left, course)) {
          return trouble;
        }
        course.Received(piece.bytes);
      }
      on_received(m, piece);
      if (m + pipe.leading < pipe.sent) {
        if (auto trouble = post_send(m + pipe.leading)) return trouble;
      }
      if (m + kWindow < pipe.received) {
        if (auto trouble = post_recv(m + kWindow)) return trouble;
      }
    }
    for (WaitableBuffer* buffer : under_way) {
      if (auto trouble = From(mesh_->AwaitSend(*buffer, course.limit), pipe.right, course)) {
        return trouble;
      }
    }
    return std::nullopt;
  }

  struct Target {
    WaitableBuffer* buffer;
    Slice slice;
  };

  MaybeTrouble AllReduceRing(Course& course) {
    const Operation& operation = course.operation;
    const Call& call = operation.call;
    const auto element = static_cast<std::size_t>(BitsOf(call.dtype) / 8);
    const AllReducePlan plan(call.count, element, size_, rank_, kSegmentBytesMax);
    const int divisor = call.reduce == ReduceOp::kAverage ? size_ : 1;
    auto* const data = static_cast<char*>(operation.output);
    scratch_.resize(std::max(scratch_.size(), kWindow * plan.segment_bytes()));
    // Destroyed before the operation returns: from then on Gloo cannot touch the tensor.
    const Mesh::Registration tensor(*mesh_, data, operation.bytes);
    const Mesh::Registration incoming(*mesh_, scratch_.data(), scratch_.size());

    const auto recv_at = [&](int m) -> Target {
      const Slice slice = plan.Received(m);
      if (!plan.Reduces(m)) return {tensor.get(), slice};
      return {incoming.get(),
              {static_cast<std::size_t>(m % kWindow) * plan.segment_bytes(), slice.bytes}};
    };
    const auto on_received = [&](int m, const Slice& at) {
      if (!plan.Reduces(m)) return;
      const Slice slice = plan.Received(m);
      char* const sum = data + slice.offset;
      Combine(call.dtype, call.reduce, sum, scratch_.data() + at.offset, sum, slice.bytes / element,
              plan.Completes(m) ? divisor : 1);
      if (plan.Completes(m)) course.AllJoined();
    };
    const auto send_at = [&](int m) -> Target { return {tensor.get(), plan.Sent(m)}; };
    return RunPipeline(course,
                       {.left = Wrap(rank_ - 1),
                        .right = Wrap(rank_ + 1),
                        .leading = plan.segments(),
                        .received = plan.messages(),
                        .sent = plan.messages()},
                       recv_at, on_received, send_at);
  }

  MaybeTrouble AllGatherRing(Course& course) {
    const Operation& operation = course.operation;
    const std::size_t bytes = operation.bytes;
    const AllGatherPlan plan(bytes, size_, rank_, kSegmentBytesMax);
    auto* const output = static_cast<char*>(operation.output);
    char* const own = output + static_cast<std::size_t>(rank_) * bytes;
    if (own != operation.input) std::memmove(own, operation.input, bytes);
    const Mesh::Registration tensor(*mesh_, output, bytes * static_cast<std::size_t>(size_));
    return RunPipeline(
        course,
        {.left = Wrap(rank_ - 1),
         .right = Wrap(rank_ + 1),
         .leading = plan.segments(),
         .received = plan.messages(),
         .sent = plan.messages()},
        [&](int m) -> Target {
          return {tensor.get(), plan.Received(m)};
        },
        [&](int m, const Slice&) {
          if (m == plan.messages() - plan.segments()) course.AllJoined();
        },
        [&](int m) -> Target {
          return {tensor.get(), plan.Sent(m)};
        });
  }

  MaybeTrouble BroadcastChain(Course& course) {
    const Operation& operation = course.operation;
    const int relative = Wrap(rank_ - operation.call.root);
    const Mesh::Registration tensor(*mesh_, operation.output, operation.bytes);
    const int segments =
        static_cast<int>((operation.bytes + kSegmentBytesMax - 1) / kSegmentBytesMax);
    const bool first = relative == 0;
    const bool last = relative == size_ - 1;
    const auto at = [&](int m) -> Target {
      const std::size_t offset = static_cast<std::size_t>(m) * kSegmentBytesMax;
      return {tensor.get(), {offset, std::min(kSegmentBytesMax, operation.bytes - offset)}};
    };
    return RunPipeline(
        course,
        {.left = Wrap(rank_ - 1),
         .right = Wrap(rank_ + 1),
         .leading = first ? segments : 0,
         .received = first ? 0 : segments,
         .sent = last ? 0 : segments},
        at, [](int, const Slice&) {}, at);
  }

  const std::unique_ptr<Mesh> mesh_;
  const int rank_;
  const int size_;
  std::vector<char> scratch_;  // incoming segments; grows to kWindow segments and stays
};

}  // namespace

Result<std::unique_ptr<Backend>> ConnectGlooBackend(const GlooPlace& place, KeyValue& store,
                                                    FailureArbiter& arbiter, Deadline deadline) {
  PERDURE_ASSIGN_OR_RETURN(std::unique_ptr<Mesh> mesh,
                           Mesh::Connect(place, store, arbiter, deadline));
  return std::unique_ptr<Backend>(std::make_unique<GlooBackend>(std::move(mesh)));
}

}  // namespace perdure
