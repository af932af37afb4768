// The CommitGroup of the checkpoint room over the control store.
#pragma once

#include <string>

#include "checkpoint/commit_group.h"
#include "control/key_value.h"

namespace perdure {

class StoreCommitGroup final : public CommitGroup {
 public:
  // `store` outlives the group; closing it ends every Await.
  StoreCommitGroup(KeyValue& store, Rank rank, int size, Generation generation)
      : store_(store), rank_(rank), size_(size), generation_(generation) {}

  Rank rank() const override { return rank_; }
  int size() const override { return size_; }
  Generation generation() const override { return generation_; }
  Status Publish(std::string_view key, std::string_view value, Deadline deadline) override {
    return store_.Set(key, value, deadline);
  }
  Result<std::string> Await(std::string_view key, Deadline deadline) override {
    return store_.Get(key, deadline);
  }
  Status Forget(std::string_view prefix, Deadline deadline) override {
    return store_.Forget(prefix, deadline);
  }

 private:
  KeyValue& store_;
  const Rank rank_;
  const int size_;
  const Generation generation_;
};

}  // namespace perdure
