// A store that fails when told to: its calls are counted, and some of them do not come through, or
// come through without an answer, as it happens on a network.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "storage/store.h"

namespace perdure {

struct StoreFault {
  std::int64_t first_call = 1;
  std::int64_t last_call = INT64_MAX;  // inclusive
  bool takes_effect = false;           // the call is carried out; only its answer is lost
  Code code = Code::kUnavailable;
};

class FaultyStore final : public Store {
 public:
  // `base` outlives this.
  explicit FaultyStore(Store& base) : base_(base) {}

  // Replaces the faults in force. Calls of all verbs count, from 1, since construction.
  void Set(std::vector<StoreFault> faults);
  std::int64_t calls() const;

  Status Put(const std::string& key, std::string_view value) override;
  Status Create(const std::string& key, std::string_view value) override;
  Result<std::string> Get(const std::string& key, std::int64_t offset, std::int64_t bytes) override;
  Result<std::vector<std::string>> List(const std::string& directory) override;
  Status Remove(const std::string& key) override;
  std::string Where(const std::string& key) const override { return base_.Where(key); }

 private:
  template <class Call>
  auto Do(const char* verb, const std::string& key, Call call) -> decltype(call());

  Store& base_;
  mutable Mutex mutex_;
  std::int64_t calls_ PERDURE_GUARDED_BY(mutex_) = 0;
  std::vector<StoreFault> faults_ PERDURE_GUARDED_BY(mutex_);
};

}  // namespace perdure
