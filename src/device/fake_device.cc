#include "device/fake_device.h"

#include <algorithm>

#include "base/mutex.h"

namespace perdure {
namespace {

class FakeStream final : public CopyStream {
 public:
  FakeStream(const FakeDevice::BeforeCopy& before, std::unique_ptr<CopyStream> cpu)
      : before_(before), cpu_(std::move(cpu)) {}

  Status FollowProgram() override { return cpu_->FollowProgram(); }
  Status HoldProgram(StreamPoint point) override { return cpu_->HoldProgram(point); }
  Status ToHost(std::byte* host, const std::byte* device, std::int64_t bytes) override {
    PERDURE_RETURN_IF_ERROR(before_(bytes));
    return cpu_->ToHost(host, device, bytes);
  }
  Status ToDevice(std::byte* device, const std::byte* host, std::int64_t bytes) override {
    PERDURE_RETURN_IF_ERROR(before_(bytes));
    return cpu_->ToDevice(device, host, bytes);
  }
  Result<StreamPoint> Mark() override { return cpu_->Mark(); }
  Status Wait(StreamPoint point, Deadline deadline) override { return cpu_->Wait(point, deadline); }

 private:
  const FakeDevice::BeforeCopy& before_;
  const std::unique_ptr<CopyStream> cpu_;
};

}  // namespace

struct FakeDevice::Account {
  Mutex mutex;
  std::int64_t bytes PERDURE_GUARDED_BY(mutex) = 0;
  std::int64_t peak PERDURE_GUARDED_BY(mutex) = 0;
  bool refuses PERDURE_GUARDED_BY(mutex) = false;

  void Add(std::int64_t more) {
    MutexLock lock(mutex);
    bytes += more;
    peak = std::max(peak, bytes);
  }
};

FakeDevice::FakeDevice(BeforeCopy before)
    : before_(std::move(before)), account_(std::make_shared<Account>()) {}
FakeDevice::~FakeDevice() = default;

void FakeDevice::RefuseHostMemory(bool refuse) {
  MutexLock lock(account_->mutex);
  account_->refuses = refuse;
}

Result<HostMemory> FakeDevice::AllocateHost(std::int64_t bytes) {
  {
    MutexLock lock(account_->mutex);
    if (account_->refuses && bytes > 0) {
      return Status(Code::kResourceExhausted, "the fake device has no host memory");
    }
  }
  PERDURE_ASSIGN_OR_RETURN(HostMemory memory, cpu_.AllocateHost(bytes));
  account_->Add(bytes);
  auto held = std::make_shared<HostMemory>(std::move(memory));
  std::byte* const data = held->data();
  return HostMemory(data, bytes,
                    [held, account = account_](std::byte*, std::int64_t released) mutable {
                      held.reset();
                      account->Add(-released);
                    });
}

std::int64_t FakeDevice::host_bytes_peak() const {
  MutexLock lock(account_->mutex);
  return account_->peak;
}

Result<std::unique_ptr<CopyStream>> FakeDevice::OpenStream() {
  PERDURE_ASSIGN_OR_RETURN(std::unique_ptr<CopyStream> cpu, cpu_.OpenStream());
  return std::unique_ptr<CopyStream>(std::make_unique<FakeStream>(before_, std::move(cpu)));
}

}  // namespace perdure
