// Memory for copies of the state, and how a tensor gets in and out of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/parts.h"
#include "device/device.h"
#include "perdure/status.h"
#include "perdure/tensor.h"

namespace perdure {

// Bytes [offset, offset + packed.size()) of the tensor as it would lie packed, bit by bit, whatever
// its strides. Copies are queued on `stream`, which must be of the tensor's device.
// kUnimplemented for strided elements below a byte.
Status Pack(const TensorView& view, std::int64_t offset, std::span<std::byte> packed,
            CopyStream& stream);
// The other way.
Status Unpack(std::span<const std::byte> packed, std::int64_t offset, const TensorView& view,
              CopyStream& stream);

// The same for a whole tensor in CPU memory; kUnimplemented for memory on another device.
Status Pack(const TensorView& view, std::span<std::byte> packed);
Status Unpack(std::span<const std::byte> packed, const TensorView& view);

// One copy of the state, or of a part of it. Not thread-safe; the bytes of different pieces may be
// used by different threads.
class Staging {
 public:
  // What a piece takes, the gap to the next one included.
  static std::int64_t RoomFor(std::int64_t bytes);

  // Room for every piece, each at a multiple of 64 bytes. Contents are undefined afterwards. Memory
  // that is large enough is kept.
  Status Shape(const Structure& structure);
  // Room for the pieces with `wanted`, from `device`; the others have none.
  Status Shape(const Structure& structure, const std::vector<bool>& wanted, Device& device);

  std::span<std::byte> BytesOf(std::size_t piece);
  std::span<const std::byte> BytesOf(std::size_t piece) const;
  std::int64_t capacity() const { return memory_.bytes(); }
  // Gives the memory back.
  void Release();

 private:
  struct Place {
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
  };
  HostMemory memory_;
  std::vector<Place> places_;
};

}  // namespace perdure
