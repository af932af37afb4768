#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>

#include "device/device.h"

namespace perdure {
namespace {

class CpuStream final : public CopyStream {
 public:
  Status FollowProgram() override { return Ok(); }
  Status HoldProgram(StreamPoint) override { return Ok(); }
  Status ToHost(std::byte* host, const std::byte* device, std::int64_t bytes) override {
    std::memcpy(host, device, static_cast<std::size_t>(bytes));
    return Ok();
  }
  Status ToDevice(std::byte* device, const std::byte* host, std::int64_t bytes) override {
    std::memcpy(device, host, static_cast<std::size_t>(bytes));
    return Ok();
  }
  Result<StreamPoint> Mark() override { return StreamPoint{}; }
  Status Wait(StreamPoint, Deadline) override { return Ok(); }
};

void Unmap(std::byte* data, std::int64_t bytes) {
  ::munmap(data, static_cast<std::size_t>(bytes));
}

}  // namespace

Result<std::unique_ptr<CopyStream>> CpuDevice::OpenStream() {
  return std::unique_ptr<CopyStream>(std::make_unique<CpuStream>());
}

Result<HostMemory> CpuDevice::AllocateHost(std::int64_t bytes) {
  if (bytes == 0) return HostMemory();
  void* const data = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return Status(Code::kResourceExhausted, fmt::format("no memory ({} bytes)", bytes));
  }
  // Large pages make the first copy into it several times faster; without them it works too.
  static_cast<void>(::madvise(data, static_cast<std::size_t>(bytes), MADV_HUGEPAGE));
  return HostMemory(static_cast<std::byte*>(data), bytes, Unmap);
}

}  // namespace perdure
