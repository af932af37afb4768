#include "device/device.h"

#include <fmt/format.h>

namespace perdure {
namespace {

std::pair<DeviceKind, int> KeyOf(DeviceKind kind, int index) {
  return {kind, kind == DeviceKind::kCpu ? 0 : index};
}

}  // namespace

Devices::Devices(Opener open_cuda) : open_cuda_(std::move(open_cuda)) {
  Set(DeviceKind::kCpu, 0, std::make_unique<CpuDevice>());
}

void Devices::Set(DeviceKind kind, int index, std::unique_ptr<Device> device) {
  MutexLock lock(mutex_);
  devices_[KeyOf(kind, index)] = std::move(device);
}

Result<Device*> Devices::Find(DeviceKind kind, int index) const {
  MutexLock lock(mutex_);
  std::unique_ptr<Device>& device = devices_[KeyOf(kind, index)];
  if (device != nullptr) return device.get();
  if (!open_cuda_) {
    return Status(Code::kUnimplemented,
                  fmt::format("its memory is on CUDA device {}; CPU memory only here", index));
  }
  Result<std::unique_ptr<Device>> opened = open_cuda_(index);
  PERDURE_RETURN_IF_ERROR(
      opened.status().WithContext(fmt::format("its memory is on CUDA device {}", index)));
  device = std::move(opened).value();
  return device.get();
}

}  // namespace perdure
