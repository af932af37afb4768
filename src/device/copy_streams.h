// The copy streams of one user of several devices.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "device/device.h"
#include "perdure/clock.h"
#include "perdure/status.h"
#include "perdure/tensor.h"

namespace perdure {

// One stream for each device that is met, opened at the first need. Not thread-safe.
class CopyStreams {
 public:
  // `devices` outlives this.
  explicit CopyStreams(const Devices& devices) : devices_(devices) {}
  Result<CopyStream*> For(const TensorView& view);
  // For each device that was met: what the program has queued on it so far comes before what is
  // queued here next.
  Status FollowProgram();
  // The places after everything that was queued, one for each stream.
  using Points = std::vector<std::pair<CopyStream*, StreamPoint>>;
  Result<Points> Mark();
  static Status Wait(const Points& points, Deadline deadline);
  // Mark and Wait.
  Status Drain(Deadline deadline);

 private:
  const Devices& devices_;
  std::map<std::pair<DeviceKind, int>, std::unique_ptr<CopyStream>> streams_;
};

}  // namespace perdure
