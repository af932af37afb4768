// An operation: 1 each rank that takes part (all, or sender and receiver) lays down what it called
// and where its memory is; 2 the last to arrive computes for all of them, in rank order; 3 everyone
// leaves. A rank that gives up takes its entry back and marks the operation broken, so that nobody
// touches its memory afterwards.
#include "comm/backends/loopback/loopback_backend.h"

#include <fmt/format.h>

#include <compare>
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
    const Key key = KeyOf(rank, operation);
    Meeting& meeting = meetings_[key];
    for (const auto& [peer, other] : meeting.entries) {
      if (AsCompared(other.call, peer) == AsCompared(operation.call, rank)) continue;
      meeting.misfit = {rank, operation};
      changed_.NotifyAll();
      return Mismatch(rank, operation, peer, other);
    }
    meeting.entries[rank] = operation;
    const int members = key.from < 0 ? size_ : 2;
    if (++meeting.arrived == members) {
      Compute(meeting);
      meeting.done = true;
      changed_.NotifyAll();
    }
    std::optional<Trouble> trouble;
    while (!meeting.done && !trouble.has_value()) {
      trouble = Woken(rank);
      if (!trouble.has_value()) trouble = Missing(key, meeting);
      if (!trouble.has_value() && meeting.misfit.has_value()) {
        trouble = Mismatch(rank, operation, meeting.misfit->first, meeting.misfit->second);
      }
      if (!trouble.has_value() && !changed_.WaitUntil(mutex_, limit) && !meeting.done) {
        trouble = Trouble{.kind = Trouble::Kind::kDeadline};
      }
    }
    if (meeting.done) {
      trouble.reset();
      bytes_done.store(operation.bytes, std::memory_order_relaxed);
      if (++meeting.left == members) meetings_.erase(key);
    } else {
      // Not complete, and never again: nobody may use this rank's memory.
      meeting.entries.erase(rank);
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
  // A collective by its number; a send with its recv by who, to whom, and the number of that.
  struct Key {
    int from = -1;
    int to = -1;
    std::uint64_t sequence = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  static Key KeyOf(int rank, const Operation& operation) {
    const int peer = operation.peer();
    if (peer < 0) return {.sequence = operation.sequence};
    const bool sends = operation.call.verb == Verb::kSend;
    return {sends ? rank : peer, sends ? peer : rank, operation.sequence};
  }

  struct Meeting {
    std::map<int, Operation> entries;  // by rank
    int arrived = 0;
    int left = 0;
    bool done = false;
    std::optional<std::pair<int, Operation>> misfit;  // who called something else, and what
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
  std::optional<Trouble> Missing(const Key& key, const Meeting& meeting) const
      PERDURE_REQUIRES(mutex_) {
    for (int peer = 0; peer < size_; ++peer) {
      const RankState& state = ranks_[static_cast<std::size_t>(peer)];
      if (!state.closed || meeting.entries.count(peer) != 0) continue;
      if (key.from >= 0 && peer != key.from && peer != key.to) continue;
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

  // dst = the reduction of what `from` gives for each rank, in rank order.
  template <class From>
  void ReduceInto(void* dst, const Call& call, std::size_t bytes, const From& from) {
    if (dst != from(0)) std::memcpy(dst, from(0), bytes);
    for (int rank = 1; rank < size_; ++rank) {
      const bool last = rank + 1 == size_ && call.reduce == ReduceOp::kAverage;
      Combine(call.dtype, call.reduce, dst, dst, from(rank), call.count, last ? size_ : 1);
    }
  }

  void Compute(Meeting& meeting) PERDURE_REQUIRES(mutex_) {
    const Operation& first = meeting.entries.begin()->second;
    const Call& call = first.call;
    const std::size_t bytes = first.bytes;
    if (bytes == 0) return;
    const auto at = [&](int rank) -> const Operation& { return meeting.entries.at(rank); };
    const auto block_of = [&](const void* memory, int index) {
      return static_cast<const char*>(memory) + static_cast<std::size_t>(index) * bytes;
    };
    switch (call.verb) {
      case Verb::kBarrier:
        return;
      case Verb::kSend:
      case Verb::kRecv: {
        const bool first_sends = call.verb == Verb::kSend;
        const Operation& second = meeting.entries.rbegin()->second;
        std::memcpy((first_sends ? second : first).output, (first_sends ? first : second).input,
                    bytes);
        return;
      }
      case Verb::kBroadcast: {
        const void* const from = at(call.root).input;
        for (const auto& [rank, entry] : meeting.entries) {
          if (entry.output != from) std::memcpy(entry.output, from, bytes);
        }
        return;
      }
      case Verb::kAllGather: {
        std::vector<char> all;
        for (const auto& [rank, entry] : meeting.entries) {
          all.insert(all.end(), block_of(entry.input, 0), block_of(entry.input, 1));
        }
        for (const auto& [rank, entry] : meeting.entries) {
          std::memcpy(entry.output, all.data(), all.size());
        }
        return;
      }
      case Verb::kAllToAll: {
        for (const auto& [to, receiver] : meeting.entries) {
          for (const auto& [from, sender] : meeting.entries) {
            std::memcpy(const_cast<char*>(block_of(receiver.output, from)),
                        block_of(sender.input, to), bytes);
          }
        }
        return;
      }
      case Verb::kAllReduce:
      case Verb::kReduce: {
        ReduceInto(first.output, call, bytes, [&](int rank) { return at(rank).input; });
        for (const auto& [rank, entry] : meeting.entries) {
          const bool wants = call.verb == Verb::kAllReduce || rank == call.root;
          if (wants && entry.output != first.output) {
            std::memcpy(entry.output, first.output, bytes);
          }
        }
        return;
      }
      case Verb::kReduceScatter: {
        // Not straight into the outputs, which may lie in the inputs.
        std::vector<char> all(bytes * meeting.entries.size());
        for (int block = 0; block < size_; ++block) {
          ReduceInto(all.data() + static_cast<std::size_t>(block) * bytes, call, bytes,
                     [&](int rank) { return block_of(at(rank).input, block); });
        }
        for (const auto& [rank, entry] : meeting.entries) {
          std::memcpy(entry.output, block_of(all.data(), rank), bytes);
        }
        return;
      }
    }
  }

  const int size_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<Key, Meeting> meetings_ PERDURE_GUARDED_BY(mutex_);
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
