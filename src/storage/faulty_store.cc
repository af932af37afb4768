#include "storage/faulty_store.h"

#include <fmt/format.h>

#include <optional>

namespace perdure {

void FaultyStore::Set(std::vector<StoreFault> faults) {
  const MutexLock lock(mutex_);
  faults_ = std::move(faults);
}

std::int64_t FaultyStore::calls() const {
  const MutexLock lock(mutex_);
  return calls_;
}

template <class Call>
auto FaultyStore::Do(const char* verb, const std::string& key, Call call) -> decltype(call()) {
  std::optional<StoreFault> hit;
  {
    const MutexLock lock(mutex_);
    ++calls_;
    for (const StoreFault& fault : faults_) {
      if (calls_ >= fault.first_call && calls_ <= fault.last_call) hit = fault;
    }
  }
  if (!hit.has_value()) return call();
  if (hit->takes_effect) static_cast<void>(call().ok());
  return Status(hit->code, fmt::format("{} {}: a fault was asked for", verb, Where(key)));
}

Status FaultyStore::Put(const std::string& key, std::string_view value) {
  return Do("put", key, [&] { return base_.Put(key, value); });
}

Status FaultyStore::Create(const std::string& key, std::string_view value) {
  return Do("create", key, [&] { return base_.Create(key, value); });
}

Result<std::string> FaultyStore::Get(const std::string& key, std::int64_t offset,
                                     std::int64_t bytes) {
  return Do("get", key, [&] { return base_.Get(key, offset, bytes); });
}

Result<std::vector<std::string>> FaultyStore::List(const std::string& directory) {
  return Do("list", directory, [&] { return base_.List(directory); });
}

Status FaultyStore::Remove(const std::string& key) {
  return Do("remove", key, [&] { return base_.Remove(key); });
}

}  // namespace perdure
