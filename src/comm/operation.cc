#include "comm/operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace perdure {

std::string_view NameOf(Verb verb) {
  constexpr std::array<std::string_view, 9> kNames = {"all_reduce", "broadcast",      "all_gather",
                                                      "barrier",    "reduce_scatter", "reduce",
                                                      "all_to_all", "send",           "recv"};
  return kNames.at(static_cast<std::size_t>(verb));
}

std::string_view NameOf(ReduceOp op) {
  constexpr std::array<std::string_view, 5> kNames = {"sum", "average", "min", "max", "product"};
  return kNames.at(static_cast<std::size_t>(op));
}

Call AsCompared(const Call& call, int self) {
  Call compared = call;
  if (call.verb == Verb::kRecv) {
    compared.verb = Verb::kSend;
    compared.root = self;
  }
  return compared;
}

std::string Describe(const Call& call) {
  if (call.verb == Verb::kBarrier) return "barrier";
  std::string dtype(NameOf(call.dtype));
  std::transform(dtype.begin(), dtype.end(), dtype.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::string text = fmt::format("{} {} x {}", NameOf(call.verb), dtype, call.count);
  if (Reduces(call.verb)) text += fmt::format(" ({})", NameOf(call.reduce));
  if (call.verb == Verb::kBroadcast || call.verb == Verb::kRecv) {
    text += fmt::format(" from rank {}", call.root);
  }
  if (call.verb == Verb::kReduce || call.verb == Verb::kSend) {
    text += fmt::format(" to rank {}", call.root);
  }
  return text;
}

std::uint64_t SignatureOf(const Call& call) {
  std::uint64_t hash = static_cast<std::uint64_t>(call.verb) |
                       static_cast<std::uint64_t>(call.dtype) << 8 |
                       static_cast<std::uint64_t>(call.reduce) << 16 |
                       static_cast<std::uint64_t>(static_cast<std::uint32_t>(call.root)) << 32;
  // The finalizer of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
  // Generators, 2014).
  for (const std::uint64_t word : {call.count, std::uint64_t{0}}) {
    hash += 0x9e3779b97f4a7c15ull + word;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ull;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebull;
    hash ^= hash >> 31;
  }
  return hash;
}

}  // namespace perdure
