// A store in memory, for tests: as durable as the process.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "storage/store.h"

namespace perdure {

class MemoryStore final : public Store {
 public:
  Status Put(const std::string& key, std::string_view value) override;
  Status Create(const std::string& key, std::string_view value) override;
  Result<std::string> Get(const std::string& key, std::int64_t offset, std::int64_t bytes) override;
  Result<std::vector<std::string>> List(const std::string& directory) override;
  Status Remove(const std::string& key) override;
  std::string Where(const std::string& key) const override;

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::string> values_ PERDURE_GUARDED_BY(mutex_);
};

}  // namespace perdure
