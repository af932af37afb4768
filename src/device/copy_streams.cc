#include "device/copy_streams.h"

namespace perdure {

Result<CopyStream*> CopyStreams::For(const TensorView& view) {
  std::unique_ptr<CopyStream>& stream = streams_[{view.device, view.device_index}];
  if (stream == nullptr) {
    PERDURE_ASSIGN_OR_RETURN(Device* const device, devices_.Find(view.device, view.device_index));
    PERDURE_ASSIGN_OR_RETURN(stream, device->OpenStream());
  }
  return stream.get();
}

Status CopyStreams::FollowProgram() {
  for (const auto& [device, stream] : streams_) {
    if (stream != nullptr) PERDURE_RETURN_IF_ERROR(stream->FollowProgram());
  }
  return Ok();
}

Result<CopyStreams::Points> CopyStreams::Mark() {
  Points points;
  for (const auto& [device, stream] : streams_) {
    if (stream == nullptr) continue;
    PERDURE_ASSIGN_OR_RETURN(const StreamPoint point, stream->Mark());
    points.emplace_back(stream.get(), point);
  }
  return points;
}

Status CopyStreams::Wait(const Points& points, Deadline deadline) {
  for (const auto& [stream, point] : points) {
    PERDURE_RETURN_IF_ERROR(stream->Wait(point, deadline));
  }
  return Ok();
}

Status CopyStreams::Drain(Deadline deadline) {
  PERDURE_ASSIGN_OR_RETURN(const Points points, Mark());
  return Wait(points, deadline);
}

}  // namespace perdure
