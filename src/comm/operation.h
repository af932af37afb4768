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

enum class Verb : std::uint8_t { kAllReduce, kBroadcast, kAllGather, kBarrier };

// "all_reduce", …
std::string_view NameOf(Verb verb);
// "sum", …
std::string_view NameOf(ReduceOp op);

// What every rank must call alike. Travels in front of the payload.
struct Call {
  Verb verb = Verb::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp reduce = ReduceOp::kSum;  // kAllReduce
  std::int32_t root = 0;             // kBroadcast
  std::uint64_t count = 0;           // elements of one rank
  friend bool operator==(const Call&, const Call&) = default;
};

// "all_reduce f32 x 1048576 (sum)", "broadcast u8 x 12 from rank 1", "barrier".
std::string Describe(const Call& call);
// Hash of the call, for comparing it across ranks at a glance.
std::uint64_t SignatureOf(const Call& call);

struct Operation {
  Call call = {};
  std::uint64_t sequence = 0;  // number in its communicator, from 1
  std::size_t bytes = 0;       // of one rank
  const void* input = nullptr;
  void* output = nullptr;  // the same memory as `input` for all_reduce and broadcast
};

}  // namespace perdure
