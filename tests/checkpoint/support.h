// What the checkpoint tests share: ranks as threads over a group in memory, and a small program
// state whose bytes are known for every step.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "checkpoint/commit_group.h"
#include "checkpoint/engine.h"
#include "perdure/tensor.h"
#include "storage/files.h"

namespace perdure {

// The facts that the ranks of one generation share.
class Board {
 public:
  Status Publish(std::string_view key, std::string_view value) {
    MutexLock lock(mutex_);
    values_[std::string(key)] = std::string(value);
    changed_.NotifyAll();
    return Ok();
  }

  Result<std::string> Await(std::string_view key, Deadline deadline) {
    MutexLock lock(mutex_);
    for (;;) {
      const auto found = values_.find(std::string(key));
      if (found != values_.end()) return found->second;
      if (down_) return Status(Code::kAborted, "the group is being taken down");
      if (!changed_.WaitUntil(mutex_, deadline) && values_.count(std::string(key)) == 0) {
        return Status(Code::kDeadlineExceeded, std::string(key));
      }
    }
  }

  Status Forget(std::string_view prefix) {
    MutexLock lock(mutex_);
    auto key = values_.lower_bound(std::string(prefix));
    while (key != values_.end() && key->first.compare(0, prefix.size(), prefix) == 0) {
      key = values_.erase(key);
    }
    return Ok();
  }

  // What a dying store does to those who wait.
  void TakeDown() {
    MutexLock lock(mutex_);
    down_ = true;
    changed_.NotifyAll();
  }

  std::map<std::string, std::string> values() const {
    MutexLock lock(mutex_);
    return values_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::string> values_ PERDURE_GUARDED_BY(mutex_);
  bool down_ PERDURE_GUARDED_BY(mutex_) = false;
};

class MemoryGroup final : public CommitGroup {
 public:
  MemoryGroup(Board& board, Rank rank, int size, Generation generation)
      : board_(board), rank_(rank), size_(size), generation_(generation) {}
  Rank rank() const override { return rank_; }
  int size() const override { return size_; }
  Generation generation() const override { return generation_; }
  Status Publish(std::string_view key, std::string_view value, Deadline) override {
    return board_.Publish(key, value);
  }
  Result<std::string> Await(std::string_view key, Deadline deadline) override {
    return board_.Await(key, deadline);
  }
  Status Forget(std::string_view prefix, Deadline) override { return board_.Forget(prefix); }

 private:
  Board& board_;
  const Rank rank_;
  const int size_;
  const Generation generation_;
};

// Runs `body` once per rank, each in a thread of its own.
inline void RunRanks(int world, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

// A model of two replicated tensors, one sharded by rows over the ranks, one tensor and one blob of
// each rank's own, and a replicated counter.
class ToyState final : public Stateful {
 public:
  ToyState(int rank, int world) : rank_(rank), world_(world) {
    weight_.resize(6 * 5);
    scalar_.resize(1);
    shard_.resize(static_cast<std::size_t>(RowsOf(rank)) * 3);
    mine_.resize(4);
    Set(-1);
  }

  // What the state is after `step`.
  void Set(std::int64_t step) {
    for (std::size_t i = 0; i < weight_.size(); ++i) weight_[i] = ValueAt(step, 1, i);
    scalar_[0] = ValueAt(step, 2, 0);
    for (std::size_t i = 0; i < shard_.size(); ++i) {
      shard_[i] = ValueAt(step, 3, static_cast<std::size_t>(FirstRow(rank_)) * 3 + i);
    }
    for (std::size_t i = 0; i < mine_.size(); ++i) {
      mine_[i] = ValueAt(step, 4 + static_cast<std::size_t>(rank_), i);
    }
    counter_ = "step " + std::to_string(step);
    own_ = "rank " + std::to_string(rank_) + " step " + std::to_string(step);
  }

  // Whether every byte is what Set(step) makes it.
  bool Is(std::int64_t step) const {
    ToyState expected(rank_, world_);
    expected.Set(step);
    return Same(weight_, expected.weight_) && Same(scalar_, expected.scalar_) &&
           Same(shard_, expected.shard_) && Same(mine_, expected.mine_) &&
           counter_ == expected.counter_ && own_ == expected.own_;
  }

  // The same without the blobs, which no file but a checkpoint holds.
  bool SameTensors(const ToyState& other) const {
    return Same(weight_, other.weight_) && Same(scalar_, other.scalar_) &&
           Same(shard_, other.shard_) && Same(mine_, other.mine_);
  }

  std::vector<float>& weight() { return weight_; }
  // By name; a shard is that of this rank.
  std::map<std::string, std::vector<float>> Values() const {
    return {{"weight", weight_}, {"scalar", scalar_}, {"shard", shard_}, {"mine", mine_}};
  }

  Result<State> Describe() override {
    State state;
    state.tensors.push_back(Tensor("weight", weight_, {6, 5}, Holders::kReplicated));
    state.tensors.push_back(Tensor("scalar", scalar_, {}, Holders::kReplicated));
    TensorEntry shard = Tensor("shard", shard_, {RowsOf(rank_), 3}, Holders::kSharded);
    shard.global_shape = {kRows, 3};
    shard.offset = {FirstRow(rank_), 0};
    state.tensors.push_back(std::move(shard));
    state.tensors.push_back(Tensor("mine", mine_, {4}, Holders::kPerRank));
    state.blobs.push_back({"counter", counter_, Holders::kReplicated, Changes::kAtAnyTime});
    state.blobs.push_back({"own", own_, Holders::kPerRank, Changes::kAtAnyTime});
    return state;
  }

  Status FinishRestore(const std::vector<BlobEntry>& blobs) override {
    for (const BlobEntry& blob : blobs) (blob.name == "counter" ? counter_ : own_) = blob.bytes;
    return Ok();
  }

 private:
  static constexpr std::int64_t kRows = 7;

  std::int64_t FirstRow(int rank) const { return kRows * rank / world_; }
  std::int64_t RowsOf(int rank) const { return FirstRow(rank + 1) - FirstRow(rank); }

  static float ValueAt(std::int64_t step, std::size_t tensor, std::size_t i) {
    return static_cast<float>(step) * 1000.25F + static_cast<float>(tensor) * 100.0F +
           static_cast<float>(i) * 0.5F;
  }
  static bool Same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
  }
  static TensorEntry Tensor(std::string name, std::vector<float>& values, Shape shape,
                            Holders holders) {
    TensorEntry entry;
    entry.name = std::move(name);
    entry.view.data = values.data();
    entry.view.dtype = DType::kF32;
    entry.view.shape = std::move(shape);
    entry.holders = holders;
    return entry;
  }

  const int rank_;
  const int world_;
  std::vector<float> weight_;
  std::vector<float> scalar_;
  std::vector<float> shard_;
  std::vector<float> mine_;
  std::string counter_;
  std::string own_;
};

inline Deadline In(int seconds) {
  return Deadline::After(std::chrono::seconds(seconds));
}

inline CheckpointOptions ToyOptions(const std::string& root) {
  CheckpointOptions options;
  options.root = root;
  options.job = "toy";
  options.keep_last_n = 2;
  options.checkpoint_deadline = std::chrono::seconds(30);
  options.restore_deadline = std::chrono::seconds(30);
  options.preemption_grace = std::chrono::seconds(30);
  options.restore.reason = "a test";
  return options;
}

// One rank's engine with a ToyState in it.
struct ToyRank {
  std::unique_ptr<MemoryGroup> group;
  std::unique_ptr<ToyState> state;
  std::unique_ptr<CheckpointEngine> engine;
  Status opened;
  RestoreReport report;

  ToyRank(Board& board, int rank, int world, Generation generation, Files& files,
          CheckpointOptions options, CheckpointEvents events = {},
          const std::function<void(CheckpointEngine&)>& add_more = {})
      : group(std::make_unique<MemoryGroup>(board, Rank(rank), world, generation)),
        state(std::make_unique<ToyState>(rank, world)) {
    Result<std::unique_ptr<CheckpointEngine>> made = CheckpointEngine::Open(
        std::move(options), *group, files, RealClock(), std::move(events), In(30));
    opened = made.status();
    if (!opened.ok()) return;
    engine = std::move(made).value();
    engine->Add("toy", *state);
    if (add_more) add_more(*engine);
    Result<RestoreReport> restored = engine->Restore();
    opened = restored.status();
    if (opened.ok()) report = *restored;
  }
};

}  // namespace perdure
