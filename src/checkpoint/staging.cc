#include "checkpoint/staging.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace perdure {
namespace {

constexpr std::int64_t kPlaceAlignment = 64;

// Walks bytes [begin, end) of a tensor in row-major order as runs that are contiguous in its
// memory. `move(memory, packed_offset, bytes)`, which may fail.
template <class Move>
Status ForEachRun(const TensorView& view, std::int64_t begin, std::int64_t end, Move move) {
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t bytes, ByteCount(view.dtype, view.shape));
  PERDURE_CHECK(begin >= 0 && end <= bytes, "a range of the tensor");
  if (begin >= end) return Ok();
  if (view.data == nullptr) return Status(Code::kInvalidArgument, "its memory is null");
  auto* const memory = static_cast<std::byte*>(view.data);
  if (view.strides.empty()) return move(memory + begin, begin, end - begin);
  if (view.strides.size() != view.shape.size()) {
    return Status(Code::kInvalidArgument, "it has as many strides as extents or none");
  }
  std::size_t inner = view.shape.size();
  std::int64_t run = 1;
  while (inner > 0 && (view.strides[inner - 1] == run || view.shape[inner - 1] == 1)) {
    run *= view.shape[--inner];
  }
  if (inner == 0) return move(memory + begin, begin, end - begin);
  const std::int64_t width = BitsOf(view.dtype) / 8;
  if (width == 0) {
    return Status(Code::kUnimplemented, "elements below a byte must be packed, not strided");
  }
  const std::int64_t run_bytes = run * width;
  Shape at(inner, 0);
  std::int64_t rest = begin / run_bytes;
  for (std::size_t axis = inner; axis-- > 0;) {
    at[axis] = rest % view.shape[axis];
    rest /= view.shape[axis];
  }
  for (std::int64_t packed = begin / run_bytes * run_bytes; packed < end; packed += run_bytes) {
    std::int64_t element = 0;
    for (std::size_t i = 0; i < inner; ++i) element += at[i] * view.strides[i];
    const std::int64_t skip = std::max<std::int64_t>(0, begin - packed);
    const std::int64_t stop = std::min(run_bytes, end - packed);
    PERDURE_RETURN_IF_ERROR(move(memory + element * width + skip, packed + skip, stop - skip));
    std::size_t axis = inner;
    while (axis > 0 && ++at[axis - 1] == view.shape[axis - 1]) at[--axis] = 0;
  }
  return Ok();
}

Result<std::int64_t> OnCpu(const TensorView& view) {
  if (view.device != DeviceKind::kCpu) {
    return Status(Code::kUnimplemented, "its memory is on a CUDA device, not the CPU's");
  }
  return ByteCount(view.dtype, view.shape);
}

}  // namespace

Status Pack(const TensorView& view, std::int64_t offset, std::span<std::byte> packed,
            CopyStream& stream) {
  const auto end = offset + static_cast<std::int64_t>(packed.size());
  return ForEachRun(view, offset, end, [&](std::byte* memory, std::int64_t at, std::int64_t bytes) {
    return stream.ToHost(packed.data() + (at - offset), memory, bytes);
  });
}

Status Unpack(std::span<const std::byte> packed, std::int64_t offset, const TensorView& view,
              CopyStream& stream) {
  const auto end = offset + static_cast<std::int64_t>(packed.size());
  return ForEachRun(view, offset, end, [&](std::byte* memory, std::int64_t at, std::int64_t bytes) {
    return stream.ToDevice(memory, packed.data() + (at - offset), bytes);
  });
}

Status Pack(const TensorView& view, std::span<std::byte> packed) {
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t bytes, OnCpu(view));
  PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<CopyStream> stream, CpuDevice().OpenStream());
  return Pack(view, 0, packed.first(static_cast<std::size_t>(bytes)), *stream);
}

Status Unpack(std::span<const std::byte> packed, const TensorView& view) {
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t bytes, OnCpu(view));
  PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<CopyStream> stream, CpuDevice().OpenStream());
  return Unpack(packed.first(static_cast<std::size_t>(bytes)), 0, view, *stream);
}

std::int64_t Staging::RoomFor(std::int64_t bytes) {
  return (bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
}

Status Staging::Shape(const Structure& structure) {
  CpuDevice cpu;
  return Shape(structure, std::vector<bool>(structure.size(), true), cpu);
}

Status Staging::Shape(const Structure& structure, const std::vector<bool>& wanted, Device& device) {
  places_.assign(structure.size(), Place{});
  std::int64_t at = 0;
  for (std::size_t i = 0; i < structure.size(); ++i) {
    if (!wanted[i]) continue;
    PERDURE_ASSIGN_OR_RETURN(const std::int64_t bytes,
                             ByteCount(structure[i].dtype, structure[i].shape));
    places_[i] = {at, bytes};
    at += RoomFor(bytes);
  }
  if (at <= capacity()) return Ok();
  memory_ = HostMemory();
  Result<HostMemory> memory = device.AllocateHost(at);
  PERDURE_RETURN_IF_ERROR(memory.status().WithContext("room for a copy of the state"));
  memory_ = std::move(memory).value();
  return Ok();
}

std::span<std::byte> Staging::BytesOf(std::size_t piece) {
  PERDURE_CHECK(piece < places_.size(), "a piece of the structure that was shaped");
  return {memory_.data() + places_[piece].offset, static_cast<std::size_t>(places_[piece].bytes)};
}

std::span<const std::byte> Staging::BytesOf(std::size_t piece) const {
  PERDURE_CHECK(piece < places_.size(), "a piece of the structure that was shaped");
  return {memory_.data() + places_[piece].offset, static_cast<std::size_t>(places_[piece].bytes)};
}

void Staging::Release() {
  memory_ = HostMemory();
  places_.clear();
}

}  // namespace perdure
