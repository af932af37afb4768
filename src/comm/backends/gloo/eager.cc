#include "comm/backends/gloo/eager.h"

#include <cstring>

#include "comm/reduce.h"

namespace perdure::eager {

MaybeTrouble Barrier(FrameExchange& x, Course& course) {
  int round = 0;
  for (int distance = 1; distance < x.size; distance *= 2, ++round) {
    if (auto trouble = x.Send(course, x.Wrap(x.rank + distance), round, nullptr, 0)) return trouble;
    const int from = x.Wrap(x.rank - distance);
    if (auto trouble = x.Receive(course, from, round, 0)) return trouble;
    x.mesh().ReleaseFrame(from);
  }
  return std::nullopt;
}

MaybeTrouble AllReduce(FrameExchange& x, Course& course) {
  const Operation& operation = course.operation;
  const Call& call = operation.call;
  void* const data = operation.output;
  int doubling = 1;
  while (2 * doubling <= x.size) doubling *= 2;
  const int extra = x.size - doubling;  // that many pairs fold into one at the lower end
  constexpr int kFold = 100;
  constexpr int kUnfold = 101;

  if (x.rank < 2 * extra && x.rank % 2 == 1) {
    if (auto trouble = x.Send(course, x.rank - 1, kFold, data, operation.bytes)) return trouble;
    if (auto trouble = x.Receive(course, x.rank - 1, kUnfold, operation.bytes)) return trouble;
    if (operation.bytes > 0) std::memcpy(data, x.mesh().payload(x.rank - 1), operation.bytes);
    x.mesh().ReleaseFrame(x.rank - 1);
    return std::nullopt;
  }
  const bool averages = call.reduce == ReduceOp::kAverage;
  const bool folds = x.rank < 2 * extra;
  if (folds) {
    if (auto trouble = x.Receive(course, x.rank + 1, kFold, operation.bytes)) return trouble;
    Combine(call.dtype, call.reduce, data, data, x.mesh().payload(x.rank + 1), call.count,
            averages && doubling == 1 ? x.size : 1);
    x.mesh().ReleaseFrame(x.rank + 1);
  }
  const int place = folds ? x.rank / 2 : x.rank - extra;
  int round = 0;
  for (int mask = 1; mask < doubling; mask *= 2, ++round) {
    const int partner_place = place ^ mask;
    const int partner = partner_place < extra ? 2 * partner_place : partner_place + extra;
    if (auto trouble = x.Send(course, partner, round, data, operation.bytes)) return trouble;
    if (auto trouble = x.Receive(course, partner, round, operation.bytes)) return trouble;
    const char* const theirs = x.mesh().payload(partner);
    const int divisor = averages && 2 * mask == doubling ? x.size : 1;
    if (partner < x.rank) {
      Combine(call.dtype, call.reduce, data, theirs, data, call.count, divisor);
    } else {
      Combine(call.dtype, call.reduce, data, data, theirs, call.count, divisor);
    }
    x.mesh().ReleaseFrame(partner);
  }
  if (folds) return x.Send(course, x.rank + 1, kUnfold, data, operation.bytes);
  return std::nullopt;
}

MaybeTrouble Broadcast(FrameExchange& x, Course& course) {
  const Operation& operation = course.operation;
  const int relative = x.Wrap(x.rank - operation.call.root);
  int mask = 1;
  for (; mask < x.size; mask *= 2) {
    if ((relative & mask) == 0) continue;
    const int from = x.Wrap(x.rank - mask);
    if (auto trouble = x.Receive(course, from, 0, operation.bytes)) return trouble;
    if (operation.bytes > 0) {
      std::memcpy(operation.output, x.mesh().payload(from), operation.bytes);
    }
    x.mesh().ReleaseFrame(from);
    break;
  }
  for (mask /= 2; mask > 0; mask /= 2) {
    if (relative + mask >= x.size) continue;
    if (auto trouble =
            x.Send(course, x.Wrap(x.rank + mask), 0, operation.output, operation.bytes)) {
      return trouble;
    }
  }
  return std::nullopt;
}

MaybeTrouble AllGather(FrameExchange& x, Course& course) {
  const Operation& operation = course.operation;
  const std::size_t bytes = operation.bytes;
  auto* const output = static_cast<char*>(operation.output);
  const auto block = [&](int rank) { return output + static_cast<std::size_t>(rank) * bytes; };
  if (bytes > 0 && block(x.rank) != operation.input) {
    std::memmove(block(x.rank), operation.input, bytes);
  }
  for (int distance = 1; distance < x.size; ++distance) {
    if (auto trouble = x.Send(course, x.Wrap(x.rank + distance), 0, block(x.rank), bytes)) {
      return trouble;
    }
  }
  for (int distance = 1; distance < x.size; ++distance) {
    const int from = x.Wrap(x.rank - distance);
    if (auto trouble = x.Receive(course, from, 0, bytes)) return trouble;
    if (bytes > 0) std::memcpy(block(from), x.mesh().payload(from), bytes);
    x.mesh().ReleaseFrame(from);
  }
  return std::nullopt;
}

MaybeTrouble AllToAll(FrameExchange& x, Course& course) {
  const Operation& operation = course.operation;
  const std::size_t bytes = operation.bytes;
  const auto* const input = static_cast<const char*>(operation.input);
  auto* const output = static_cast<char*>(operation.output);
  const auto offset = [&](int rank) { return static_cast<std::size_t>(rank) * bytes; };
  if (bytes > 0) std::memcpy(output + offset(x.rank), input + offset(x.rank), bytes);
  for (int distance = 1; distance < x.size; ++distance) {
    const int to = x.Wrap(x.rank + distance);
    if (auto trouble = x.Send(course, to, 0, input + offset(to), bytes)) return trouble;
  }
  for (int distance = 1; distance < x.size; ++distance) {
    const int from = x.Wrap(x.rank - distance);
    if (auto trouble = x.Receive(course, from, 0, bytes)) return trouble;
    if (bytes > 0) std::memcpy(output + offset(from), x.mesh().payload(from), bytes);
    x.mesh().ReleaseFrame(from);
  }
  return std::nullopt;
}

MaybeTrouble ReduceScatter(FrameExchange& x, Course& course) {
  const Operation& operation = course.operation;
  const Call& call = operation.call;
  const std::size_t bytes = operation.bytes;
  const auto* const input = static_cast<const char*>(operation.input);
  const auto block = [&](int rank) { return input + static_cast<std::size_t>(rank) * bytes; };
  for (int distance = 1; distance < x.size; ++distance) {
    const int to = x.Wrap(x.rank + distance);
    if (auto trouble = x.Send(course, to, 0, block(to), bytes)) return trouble;
  }
  if (bytes > 0) std::memmove(operation.output, block(x.rank), bytes);
  for (int distance = 1; distance < x.size; ++distance) {
    const int from = x.Wrap(x.rank - distance);
    if (auto trouble = x.Receive(course, from, 0, bytes)) return trouble;
    const bool last = distance + 1 == x.size && call.reduce == ReduceOp::kAverage;
    Combine(call.dtype, call.reduce, operation.output, operation.output, x.mesh().payload(from),
            call.count, last ? x.size : 1);
    x.mesh().ReleaseFrame(from);
  }
  return std::nullopt;
}

MaybeTrouble Reduce(FrameExchange& x, Course& course) {
  const Operation& operation = course.operation;
  const Call& call = operation.call;
  const int relative = x.Wrap(x.rank - call.root);
  int mask = 1;
  for (; mask < x.size && (relative & mask) == 0; mask *= 2) {
    if (relative + mask >= x.size) continue;
    const int from = x.Wrap(x.rank + mask);
    if (auto trouble = x.Receive(course, from, 0, operation.bytes)) return trouble;
    // Only the root, at its last child, knows that everything is in.
    const bool last = relative == 0 && 2 * mask >= x.size && call.reduce == ReduceOp::kAverage;
    Combine(call.dtype, call.reduce, operation.output, operation.output, x.mesh().payload(from),
            call.count, last ? x.size : 1);
    x.mesh().ReleaseFrame(from);
  }
  if (relative == 0) return std::nullopt;
  return x.Send(course, x.Wrap(x.rank - mask), 0, operation.output, operation.bytes);
}

MaybeTrouble Send(FrameExchange& x, Course& course) {
  const Operation& operation = course.operation;
  return x.Send(course, operation.peer(), 0, operation.input, operation.bytes);
}

MaybeTrouble Recv(FrameExchange& x, Course& course) {
  const Operation& operation = course.operation;
  if (auto trouble = x.Receive(course, operation.peer(), 0, operation.bytes)) return trouble;
  if (operation.bytes > 0) {
    std::memcpy(operation.output, x.mesh().payload(operation.peer()), operation.bytes);
  }
  x.mesh().ReleaseFrame(operation.peer());
  return std::nullopt;
}

}  // namespace perdure::eager
