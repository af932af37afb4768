// What travels in front of payload: enough to know that both sides mean the same operation before a
// byte of it is believed. Same machine type on both ends (little-endian), as for the payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "comm/operation.h"

namespace perdure {

enum class FrameKind : std::uint8_t { kHello = 1, kOperation = 2, kGoodbye = 3 };

inline constexpr std::uint32_t kFrameMagic = 0x50445246;  // "PDRF"

struct FrameHeader {
  std::uint32_t magic = kFrameMagic;
  FrameKind kind = FrameKind::kOperation;
  std::uint8_t round = 0;  // of an algorithm with several exchanges
  std::uint16_t unused = 0;
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::uint64_t generation = 0;
  std::uint64_t sequence = 0;  // kHello: hash of the communicator's id
  Call call = {};
  std::uint64_t payload_bytes = 0;
  std::uint64_t reserved = 0;
};
static_assert(std::is_trivially_copyable_v<FrameHeader>);
static_assert(sizeof(FrameHeader) == 64);

// Payload up to this size travels in the frame itself and needs no handshake.
inline constexpr std::size_t kEagerBytesMax = 32 * 1024;
inline constexpr std::size_t kFrameBytesMax = sizeof(FrameHeader) + kEagerBytesMax;

}  // namespace perdure
