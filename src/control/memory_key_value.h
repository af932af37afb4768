// A KeyValue over a StoreServer in the same process: for rank 0 itself, for one rank alone, and for
// tests with ranks as threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "control/key_value.h"
#include "control/store_server.h"
#include "perdure/ids.h"

namespace perdure {

class MemoryKeyValue final : public KeyValue {
 public:
  // The store outlives this.
  MemoryKeyValue(StoreServer& store, Generation generation)
      : store_(store), generation_(generation) {}
  ~MemoryKeyValue() override;

  Status Set(std::string_view key, std::string_view value, Deadline deadline) override;
  Result<std::string> Get(std::string_view key, Deadline deadline) override;
  Result<std::int64_t> Add(std::string_view key, std::int64_t amount, Deadline deadline) override;
  Result<std::string> CompareAndSet(std::string_view key, std::string_view expected,
                                    std::string_view desired, Deadline deadline) override;
  Status Forget(std::string_view prefix, Deadline deadline) override;
  void Close() override;

 private:
  Status Open();

  StoreServer& store_;
  const Generation generation_;

  Mutex mutex_;
  CondVar changed_;  // closed, or an answer arrived
  bool closed_ PERDURE_GUARDED_BY(mutex_) = false;
  int waiting_ PERDURE_GUARDED_BY(mutex_) = 0;
};

}  // namespace perdure
