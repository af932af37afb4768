// The commit group of a job of one rank, for benchmarks that ask about the engine and not about the
// way between ranks.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "checkpoint/commit_group.h"
#include "perdure/status.h"

namespace perdure::bench {

class Alone final : public CommitGroup {
 public:
  explicit Alone(Generation generation) : generation_(generation) {}

  Rank rank() const override { return Rank(0); }
  int size() const override { return 1; }
  Generation generation() const override { return generation_; }
  Status Publish(std::string_view key, std::string_view value, Deadline) override {
    MutexLock lock(mutex_);
    values_[std::string(key)] = value;
    changed_.NotifyAll();
    return Ok();
  }
  Result<std::string> Await(std::string_view key, Deadline deadline) override {
    MutexLock lock(mutex_);
    for (;;) {
      const auto found = values_.find(std::string(key));
      if (found != values_.end()) return found->second;
      if (!changed_.WaitUntil(mutex_, deadline)) return Status(Code::kDeadlineExceeded, "");
    }
  }
  Status Forget(std::string_view prefix, Deadline) override {
    MutexLock lock(mutex_);
    std::erase_if(values_, [&](const auto& item) { return item.first.rfind(prefix, 0) == 0; });
    return Ok();
  }

 private:
  const Generation generation_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::string> values_ PERDURE_GUARDED_BY(mutex_);
};

}  // namespace perdure::bench
