// An operation: 1 each rank lays down what it called and where its memory is; 2 the last to arrive
// computes for all of them, in rank order; 3 everyone leaves. A rank that gives up takes its entry
// back and marks the operation broken, so that nobody touches its memory afterwards.
#include "comm/backends/loopback/loopback_backend.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "comm/reduce.h"

namespace perdure {

class LoopbackHub {
 public:
  explicit LoopbackHub(int size) : size_(size), ranks_(static_cast<std::size_t>(size)) {}

  std::optional<Trouble> Run(int rank, const Operation& operation, const Budget& budget,
                             std::atomic<std::uint64_t>& bytes_done) {
    const Deadline limit = Earlier(budget.end, Deadline::After(budget.not_joined));
    MutexLock lock(mutex_);
    if (std::optional<Trouble> woken = Woken(rank)) return woken;
    Meeting& meeting = meetings_[operation.sequence];
    if (meeting.entries.empty()) meeting.entries.resize(static_cast<std::size_t>(size_));
    for (int peer = 0; peer < size_; ++peer) {
      const std::optional<Operation>& other = meeting.entries[static_cast<std::size_t>(peer)];
      if (!other.has_value() || other->call == operation.call) continue;
      meeting.mismatch = true;
      changed_.NotifyAll();
      return Mismatch(rank, operation, peer, *other);
    }
    meeting.entries[static_cast<std::size_t>(rank)] = operation;
    if (++meeting.arrived == size_) {
      Compute(meeting);
      meeting.done = true;
      changed_.NotifyAll();
    }
    std::optional<Trouble> trouble;
    while (!meeting.done && !trouble.has_value()) {
      trouble = Woken(rank);
      if (!trouble.has_value()) trouble = Missing(meeting);
      if (!trouble.has_value() && meeting.mismatch) {
        trouble = Trouble{.kind = Trouble::Kind::kMismatch, .peer = rank, .text = "mismatch"};
      }
      if (!trouble.has_value() && !changed_.WaitUntil(mutex_, limit) && !meeting.done) {
        trouble = Trouble{.kind = Trouble::Kind::kDeadline};
      }
    }
    if (meeting.done) {
      trouble.reset();
      bytes_done.store(operation.bytes, std::memory_order_relaxed);
      if (++meeting.left == size_) meetings_.erase(operation.sequence);
    } else {
      // Not complete, and never again: nobody may use this rank's memory.
      meeting.entries[static_cast<std::size_t>(rank)].reset();
      meeting.arrived = -size_;
    }
    return trouble;
  }

  void Wake(int rank) {
    MutexLock lock(mutex_);
    ranks_[static_cast<std::size_t>(rank)].woken = true;
    changed_.NotifyAll();
  }

  bool Lost(int peer) const {
    MutexLock lock(mutex_);
    return ranks_[static_cast<std::size_t>(peer)].closed;
  }

  void Close(int rank, bool in_order) {
    MutexLock lock(mutex_);
    RankState& state = ranks_[static_cast<std::size_t>(rank)];
    state.closed = true;
    state.in_order = in_order;
    changed_.NotifyAll();
  }

 private:
  struct Meeting {
    std::vector<std::optional<Operation>> entries;
    int arrived = 0;
    int left = 0;
    bool done = false;
    bool mismatch = false;
  };
  struct RankState {
    bool woken = false;
    bool closed = false;
    bool in_order = false;
  };

  std::optional<Trouble> Woken(int rank) const PERDURE_REQUIRES(mutex_) {
    if (!ranks_[static_cast<std::size_t>(rank)].woken) return std::nullopt;
    return Trouble{.kind = Trouble::Kind::kWoken};
  }

  // A rank that is gone and will not come to this meeting.
  std::optional<Trouble> Missing(const Meeting& meeting) const PERDURE_REQUIRES(mutex_) {
    for (int peer = 0; peer < size_; ++peer) {
      const RankState& state = ranks_[static_cast<std::size_t>(peer)];
      if (!state.closed || meeting.entries[static_cast<std::size_t>(peer)].has_value()) continue;
      return Trouble{.kind = state.in_order ? Trouble::Kind::kPeerLeft : Trouble::Kind::kPeerClosed,
                     .peer = peer};
    }
    return std::nullopt;
  }

  static Trouble Mismatch(int rank, const Operation& operation, int peer, const Operation& other) {
    return Trouble{.kind = Trouble::Kind::kMismatch,
                   .peer = peer,
                   .text = fmt::format("it called {}, rank {} called {}", Describe(other.call),
                                       rank, Describe(operation.call))};
  }

  void Compute(Meeting& meeting) PERDURE_REQUIRES(mutex_) {
    const Operation& first = *meeting.entries[0];
    const std::size_t bytes = first.bytes;
    if (bytes == 0) return;
    switch (first.call.verb) {
      case Verb::kBarrier:
        return;
      case Verb::kBroadcast: {
        const void* from = meeting.entries[static_cast<std::size_t>(first.call.root)]->input;
        for (const auto& entry : meeting.entries) {
          if (entry->output != from) std::memcpy(entry->output, from, bytes);
        }
        return;
      }
      case Verb::kAllGather: {
        std::vector<char> all(bytes * meeting.entries.size());
        for (std::size_t i = 0; i < meeting.entries.size(); ++i) {
          std::memcpy(all.data() + i * bytes, meeting.entries[i]->input, bytes);
        }
        for (const auto& entry : meeting.entries) {
          std::memcpy(entry->output, all.data(), all.size());
        }
        return;
      }
      case Verb::kAllReduce: {
        if (size_ == 1) return;
        void* const sum = first.output;
        for (int rank = 1; rank < size_; ++rank) {
          const bool last = rank + 1 == size_ && first.call.reduce == ReduceOp::kAverage;
          Combine(first.call.dtype, first.call.reduce, sum, sum,
                  meeting.entries[static_cast<std::size_t>(rank)]->input, first.call.count,
                  last ? size_ : 1);
        }
        for (int rank = 1; rank < size_; ++rank) {
          std::memcpy(meeting.entries[static_cast<std::size_t>(rank)]->output, sum, bytes);
        }
        return;
      }
    }
  }

  const int size_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<std::uint64_t, Meeting> meetings_ PERDURE_GUARDED_BY(mutex_);
  std::vector<RankState> ranks_ PERDURE_GUARDED_BY(mutex_);
};

namespace {

class LoopbackBackend final : public Backend {
 public:
  LoopbackBackend(std::shared_ptr<LoopbackHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~LoopbackBackend() override { Close(false, Deadline(MonotonicTime())); }

  std::optional<Trouble> Run(const Operation& operation, const Budget& budget,
                             std::atomic<std::uint64_t>& bytes_done) override {
    return hub_->Run(rank_, operation, budget, bytes_done);
  }
  void Wake() override { hub_->Wake(rank_); }
  bool Lost(int peer) const override { return hub_->Lost(peer); }
  void Close(bool in_order, Deadline /*deadline*/) override {
    if (!std::exchange(closed_, true)) hub_->Close(rank_, in_order);
  }

 private:
  const std::shared_ptr<LoopbackHub> hub_;
  const int rank_;
  bool closed_ = false;
};

}  // namespace

std::shared_ptr<LoopbackHub> MakeLoopbackHub(int size) {
  return std::make_shared<LoopbackHub>(size);
}

std::unique_ptr<Backend> MakeLoopbackBackend(std::shared_ptr<LoopbackHub> hub, int rank) {
  return std::make_unique<LoopbackBackend>(std::move(hub), rank);
}

}  // namespace perdure
