#include "storage/memory_store.h"

#include <fmt/format.h>

#include <algorithm>

namespace perdure {

std::string MemoryStore::Where(const std::string& key) const {
  return "memory:" + key;
}

Status MemoryStore::Put(const std::string& key, std::string_view value) {
  PERDURE_RETURN_IF_ERROR(CheckKey(key));
  const MutexLock lock(mutex_);
  values_[key] = value;
  return Ok();
}

Status MemoryStore::Create(const std::string& key, std::string_view value) {
  PERDURE_RETURN_IF_ERROR(CheckKey(key));
  const MutexLock lock(mutex_);
  const auto [found, created] = values_.try_emplace(key, value);
  if (created || found->second == value) return Ok();
  return Status(Code::kAlreadyExists, fmt::format("create {}: it exists", Where(key)));
}

Result<std::string> MemoryStore::Get(const std::string& key, std::int64_t offset,
                                     std::int64_t bytes) {
  PERDURE_RETURN_IF_ERROR(CheckKey(key));
  const MutexLock lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) {
    return Status(Code::kNotFound, fmt::format("get {}: it does not exist", Where(key)));
  }
  const std::string& value = found->second;
  const auto begin = std::min(static_cast<std::size_t>(offset), value.size());
  return value.substr(begin, static_cast<std::size_t>(bytes));
}

Result<std::vector<std::string>> MemoryStore::List(const std::string& directory) {
  if (!directory.empty()) PERDURE_RETURN_IF_ERROR(CheckKey(directory));
  const std::string prefix = directory.empty() ? "" : directory + "/";
  const MutexLock lock(mutex_);
  std::vector<std::string> names;
  for (auto at = values_.lower_bound(prefix); at != values_.end(); ++at) {
    if (at->first.compare(0, prefix.size(), prefix) != 0) break;
    const std::string name = at->first.substr(prefix.size());
    if (name.find('/') == std::string::npos) names.push_back(name);
  }
  return names;
}

Status MemoryStore::Remove(const std::string& key) {
  PERDURE_RETURN_IF_ERROR(CheckKey(key));
  const MutexLock lock(mutex_);
  values_.erase(key);
  return Ok();
}

}  // namespace perdure
