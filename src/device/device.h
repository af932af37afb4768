// Bytes between the memory that a tensor lives in and the host's, behind one interface: a copy
// engine of the CPU is memcpy, one of a GPU is a side stream with pinned host memory.
//
// Vocabulary. The *program's stream* is where the training program queues its own work on a device
// (a CPU has none: what was called has happened). A CopyStream is a queue beside it. A *point* is a
// place in the order of a CopyStream's work.
//
// Threads: Device may be used from any thread. A CopyStream's FollowProgram and HoldProgram belong
// to the thread that queues the program's work; everything else to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "base/mutex.h"
#include "perdure/clock.h"
#include "perdure/status.h"
#include "perdure/tensor.h"

namespace perdure {

// Host memory that its device copies to and from at full speed. Empty by default.
class HostMemory {
 public:
  using Release = std::function<void(std::byte*, std::int64_t)>;

  HostMemory() = default;
  HostMemory(std::byte* data, std::int64_t bytes, Release release)
      : data_(data), bytes_(bytes), release_(std::move(release)) {}
  HostMemory(HostMemory&& other) noexcept { *this = std::move(other); }
  HostMemory& operator=(HostMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    release_.swap(other.release_);
    return *this;
  }
  ~HostMemory() {
    if (data_ != nullptr) release_(data_, bytes_);
  }

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  Release release_;
};

struct StreamPoint {
  std::uint64_t number = 0;
};

class CopyStream {
 public:
  virtual ~CopyStream() = default;

  // What the program has queued on its own stream so far comes before what is queued here next.
  virtual Status FollowProgram() = 0;
  // What the program queues on its own stream from now on comes after `point`. Does not wait: on
  // a CPU the point has passed already.
  virtual Status HoldProgram(StreamPoint point) = 0;

  // Queues a copy, or carries it out at once. Both ranges stay in place until a later point has
  // passed.
  virtual Status ToHost(std::byte* host, const std::byte* device, std::int64_t bytes) = 0;
  virtual Status ToDevice(std::byte* device, const std::byte* host, std::int64_t bytes) = 0;

  // The place after everything that was queued here.
  virtual Result<StreamPoint> Mark() = 0;
  // Until the point has passed: the copies before it are done. An error is of one of them.
  virtual Status Wait(StreamPoint point, Deadline deadline) = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual Result<std::unique_ptr<CopyStream>> OpenStream() = 0;
  // Page-aligned; kResourceExhausted when there is none.
  virtual Result<HostMemory> AllocateHost(std::int64_t bytes) = 0;
};

// The CPU: memory is memory.
class CpuDevice final : public Device {
 public:
  Result<std::unique_ptr<CopyStream>> OpenStream() override;
  Result<HostMemory> AllocateHost(std::int64_t bytes) override;
};

// The devices of this process, opened when first asked for. The CPU is there from the start.
// Thread-safe.
class Devices {
 public:
  using Opener = std::function<Result<std::unique_ptr<Device>>(int index)>;

  // `open_cuda` may be empty: then there are none.
  explicit Devices(Opener open_cuda = {});
  // Replaces what was there, which nobody may be using.
  void Set(DeviceKind kind, int index, std::unique_ptr<Device> device);
  // The error says which device is missing, and why.
  Result<Device*> Find(DeviceKind kind, int index) const;

 private:
  const Opener open_cuda_;
  mutable Mutex mutex_;
  mutable std::map<std::pair<DeviceKind, int>, std::unique_ptr<Device>> devices_
      PERDURE_GUARDED_BY(mutex_);
};

}  // namespace perdure
