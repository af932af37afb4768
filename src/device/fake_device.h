// A device of ordinary memory whose copies can be held up or fail: for tests of everything that
// copies beside the program.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "device/device.h"

namespace perdure {

class FakeDevice final : public Device {
 public:
  // Called before each copy, on the thread that copies; may block, count or return an error, which
  // the copy then fails with.
  using BeforeCopy = std::function<Status(std::int64_t bytes)>;

  explicit FakeDevice(BeforeCopy before);
  ~FakeDevice() override;

  Result<std::unique_ptr<CopyStream>> OpenStream() override;
  Result<HostMemory> AllocateHost(std::int64_t bytes) override;

  // AllocateHost fails from now on, or no longer.
  void RefuseHostMemory(bool refuse);
  // The most host memory that was allocated at one time.
  std::int64_t host_bytes_peak() const;

 private:
  struct Account;
  const BeforeCopy before_;
  const std::shared_ptr<Account> account_;  // outlives this where memory does
  CpuDevice cpu_;
};

}  // namespace perdure
