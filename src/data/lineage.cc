#include <utility>

#include "base/mutex.h"
#include "perdure/data.h"

namespace perdure {

class DataLineage::Impl {
 public:
  mutable Mutex mutex;
  std::shared_ptr<const Facts> facts PERDURE_GUARDED_BY(mutex) = std::make_shared<const Facts>();
};

DataLineage::DataLineage() : impl_(std::make_unique<Impl>()) {}
DataLineage::~DataLineage() = default;

void DataLineage::Set(Facts facts) {
  auto shared = std::make_shared<const Facts>(std::move(facts));
  MutexLock lock(impl_->mutex);
  impl_->facts = std::move(shared);
}

std::shared_ptr<const DataLineage::Facts> DataLineage::Get() const {
  MutexLock lock(impl_->mutex);
  return impl_->facts;
}

}  // namespace perdure
