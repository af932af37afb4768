// One collective operation, as the ranks must agree on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "perdure/comm.h"
#include "perdure/ids.h"
#include "perdure/tensor.h"

namespace perdure {

enum class Verb : std::uint8_t {
  kAllReduce,
  kBroadcast,
  kAllGather,
  kBarrier,
  kReduceScatter,
  kReduce,
  kAllToAll,
  kSend,
  kRecv,
};

// Between two ranks; everything else takes all of them.
constexpr bool IsPointToPoint(Verb verb) {
  return verb == Verb::kSend || verb == Verb::kRecv;
}
// Computes; everything else only moves bytes.
constexpr bool Reduces(Verb verb) {
  return verb == Verb::kAllReduce || verb == Verb::kReduceScatter || verb == Verb::kReduce;
}

// "all_reduce", …
std::string_view NameOf(Verb verb);
// "sum", …
std::string_view NameOf(ReduceOp op);

// What every rank must call alike. Travels in front of the payload.
struct Call {
  Verb verb = Verb::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp reduce = ReduceOp::kSum;  // of a verb that Reduces
  std::int32_t root = 0;             // kBroadcast, kReduce; kSend, kRecv: the peer
  std::uint64_t count = 0;           // elements of one block: what one rank gives or gets
  friend bool operator==(const Call&, const Call&) = default;
};

// The call as two ranks compare it: a recv of rank `self` is the send that it waits for.
Call AsCompared(const Call& call, int self);

// "all_reduce f32 x 1048576 (sum)", "broadcast u8 x 12 from rank 1", "barrier",
// "send f32 x 4 to rank 1".
std::string Describe(const Call& call);
// Hash of the call, for comparing it across ranks at a glance.
std::uint64_t SignatureOf(const Call& call);

struct Operation {
  Call call = {};
  // Number among the collectives of its communicator, from 1; of a send or recv, among those to or
  // from the same peer.
  std::uint64_t sequence = 0;
  std::size_t bytes = 0;  // of one block
  const void* input = nullptr;
  void* output = nullptr;  // the same memory as `input` for what works in place

  // The rank that a send or recv waits for; -1: a collective.
  int peer() const { return IsPointToPoint(call.verb) ? call.root : -1; }
};

}  // namespace perdure
