#include "comm/backends/gloo/bulk.h"

#include <algorithm>
#include <cstring>

#include "comm/reduce.h"

namespace perdure::bulk {
namespace {

// Of what is not cut by a ring plan.
int SegmentsOf(std::size_t bytes) {
  return static_cast<int>((bytes + kSegmentBytesMax - 1) / kSegmentBytesMax);
}

Slice SegmentAt(std::size_t bytes, int index) {
  const std::size_t offset = static_cast<std::size_t>(index) * kSegmentBytesMax;
  return {offset, std::min(kSegmentBytesMax, bytes - offset)};
}

}  // namespace

MaybeTrouble AllReduce(FrameExchange& x, Course& course, Scratch& scratch) {
  const Operation& operation = course.operation;
  const Call& call = operation.call;
  const auto element = static_cast<std::size_t>(BitsOf(call.dtype) / 8);
  const AllReducePlan plan(call.count, element, x.size, x.rank, kSegmentBytesMax);
  const int divisor = call.reduce == ReduceOp::kAverage ? x.size : 1;
  auto* const data = static_cast<char*>(operation.output);
  scratch.resize(std::max(scratch.size(), kPipelineWindow * plan.segment_bytes()));
  // Destroyed before the operation returns: from then on Gloo cannot touch the tensor.
  const PeerMesh::Registration tensor(x.mesh(), data, operation.bytes);
  const PeerMesh::Registration incoming(x.mesh(), scratch.data(), scratch.size());

  const auto recv_at = [&](int m) -> FrameExchange::Target {
    const Slice slice = plan.Received(m);
    if (!plan.Reduces(m)) return {tensor.get(), slice};
    return {incoming.get(),
            {static_cast<std::size_t>(m % kPipelineWindow) * plan.segment_bytes(), slice.bytes}};
  };
  const auto on_received = [&](int m, const Slice& at) {
    if (!plan.Reduces(m)) return;
    const Slice slice = plan.Received(m);
    char* const sum = data + slice.offset;
    Combine(call.dtype, call.reduce, sum, scratch.data() + at.offset, sum, slice.bytes / element,
            plan.Completes(m) ? divisor : 1);
    if (plan.Completes(m)) course.AllJoined();
  };
  const auto send_at = [&](int m) -> FrameExchange::Target { return {tensor.get(), plan.Sent(m)}; };
  return x.RunPipeline(course,
                       {.left = x.Wrap(x.rank - 1),
                        .right = x.Wrap(x.rank + 1),
                        .leading = plan.segments(),
                        .received = plan.messages(),
                        .sent = plan.messages()},
                       recv_at, on_received, send_at);
}

MaybeTrouble AllGather(FrameExchange& x, Course& course) {
  const Operation& operation = course.operation;
  const std::size_t bytes = operation.bytes;
  const AllGatherPlan plan(bytes, x.size, x.rank, kSegmentBytesMax);
  auto* const output = static_cast<char*>(operation.output);
  char* const own = output + static_cast<std::size_t>(x.rank) * bytes;
  if (own != operation.input) std::memmove(own, operation.input, bytes);
  const PeerMesh::Registration tensor(x.mesh(), output, bytes * static_cast<std::size_t>(x.size));
  return x.RunPipeline(
      course,
      {.left = x.Wrap(x.rank - 1),
       .right = x.Wrap(x.rank + 1),
       .leading = plan.segments(),
       .received = plan.messages(),
       .sent = plan.messages()},
      [&](int m) -> FrameExchange::Target {
        return {tensor.get(), plan.Received(m)};
      },
      [&](int m, const Slice&) {
        if (m == plan.messages() - plan.segments()) course.AllJoined();
      },
      [&](int m) -> FrameExchange::Target {
        return {tensor.get(), plan.Sent(m)};
      });
}

MaybeTrouble Broadcast(FrameExchange& x, Course& course) {
  const Operation& operation = course.operation;
  const int relative = x.Wrap(x.rank - operation.call.root);
  const PeerMesh::Registration tensor(x.mesh(), operation.output, operation.bytes);
  const int segments = SegmentsOf(operation.bytes);
  const bool first = relative == 0;
  const bool last = relative == x.size - 1;
  const auto at = [&](int m) -> FrameExchange::Target {
    return {tensor.get(), SegmentAt(operation.bytes, m)};
  };
  return x.RunPipeline(
      course,
      {.left = x.Wrap(x.rank - 1),
       .right = x.Wrap(x.rank + 1),
       .leading = first ? segments : 0,
       .received = first ? 0 : segments,
       .sent = last ? 0 : segments},
      at, [](int, const Slice&) {}, at);
}

// From the rank after the root along the chain to the root; everyone adds its own part.
MaybeTrouble Reduce(FrameExchange& x, Course& course, Scratch& scratch) {
  const Operation& operation = course.operation;
  const Call& call = operation.call;
  const auto element = static_cast<std::size_t>(BitsOf(call.dtype) / 8);
  const int relative = x.Wrap(x.rank - call.root);
  const bool root = relative == 0;
  const bool first = relative == 1;
  const int segments = SegmentsOf(operation.bytes);
  const int divisor = root && call.reduce == ReduceOp::kAverage ? x.size : 1;
  auto* const data = static_cast<char*>(operation.output);
  scratch.resize(std::max(scratch.size(), kPipelineWindow * kSegmentBytesMax));
  const PeerMesh::Registration tensor(x.mesh(), data, operation.bytes);
  const PeerMesh::Registration incoming(x.mesh(), scratch.data(), scratch.size());
  return x.RunPipeline(
      course,
      {.left = x.Wrap(x.rank - 1),
       .right = x.Wrap(x.rank + 1),
       .leading = first ? segments : 0,
       .received = first ? 0 : segments,
       .sent = root ? 0 : segments},
      [&](int m) -> FrameExchange::Target {
        return {incoming.get(),
                {static_cast<std::size_t>(m % kPipelineWindow) * kSegmentBytesMax,
                 SegmentAt(operation.bytes, m).bytes}};
      },
      [&](int m, const Slice& at) {
        char* const sum = data + SegmentAt(operation.bytes, m).offset;
        Combine(call.dtype, call.reduce, sum, scratch.data() + at.offset, sum, at.bytes / element,
                divisor);
        if (root) course.AllJoined();
      },
      [&](int m) -> FrameExchange::Target {
        return {tensor.get(), SegmentAt(operation.bytes, m)};
      });
}

namespace {

// The piece of every block that begins at `begin`: the ring's first half, with the partial sums in
// scratch, because the input belongs to the caller.
MaybeTrouble ReduceScatterPiece(FrameExchange& x, Course& course, Scratch& scratch,
                                std::size_t begin, std::size_t bytes, int round) {
  const Operation& operation = course.operation;
  const Call& call = operation.call;
  const auto element = static_cast<std::size_t>(BitsOf(call.dtype) / 8);
  const int segments = SegmentsOf(bytes);
  const int steps = x.size - 1;
  const int divisor = call.reduce == ReduceOp::kAverage ? x.size : 1;
  // In step s, rank r sends what it has of block r - 1 - s and receives of block r - 2 - s, so
  // that the last one to receive a block is its owner.
  const auto* const input = static_cast<const char*>(operation.input);
  const auto own = [&](int step) {
    return static_cast<std::size_t>(x.Wrap(x.rank - 1 - step)) * operation.bytes + begin;
  };
  scratch.resize(std::max(scratch.size(), static_cast<std::size_t>(steps) * bytes));
  // Gloo takes what it sends from as writable, and only reads it.
  auto* const readable = const_cast<char*>(input);
  const PeerMesh::Registration source(x.mesh(), readable,
                                      operation.bytes * static_cast<std::size_t>(x.size));
  const PeerMesh::Registration partial(x.mesh(), scratch.data(), scratch.size());
  const auto slot = [&](int m) -> Slice {
    const Slice segment = SegmentAt(bytes, m % segments);
    return {static_cast<std::size_t>(m / segments) * bytes + segment.offset, segment.bytes};
  };
  return x.RunPipeline(
      course,
      {.left = x.Wrap(x.rank - 1),
       .right = x.Wrap(x.rank + 1),
       .leading = segments,
       .received = steps * segments,
       .sent = steps * segments,
       .round = round},
      [&](int m) -> FrameExchange::Target {
        return {partial.get(), slot(m)};
      },
      [&](int m, const Slice& at) {
        const int step = m / segments;
        const bool last = step + 1 == steps;
        const std::size_t offset = SegmentAt(bytes, m % segments).offset;
        char* const sum = scratch.data() + at.offset;
        char* const to = last ? static_cast<char*>(operation.output) + begin + offset : sum;
        Combine(call.dtype, call.reduce, to, sum, input + own(step + 1) + offset,
                at.bytes / element, last ? divisor : 1);
        if (last) course.AllJoined();
      },
      [&](int m) -> FrameExchange::Target {
        if (m >= segments) return {partial.get(), slot(m - segments)};
        const Slice segment = SegmentAt(bytes, m);
        return {source.get(), {own(0) + segment.offset, segment.bytes}};
      });
}

}  // namespace

MaybeTrouble ReduceScatter(FrameExchange& x, Course& course, Scratch& scratch) {
  const std::size_t bytes = course.operation.bytes;
  int round = 0;
  for (std::size_t begin = 0; begin < bytes; begin += kReduceScatterPieceMax, ++round) {
    const std::size_t piece = std::min(kReduceScatterPieceMax, bytes - begin);
    if (auto trouble = ReduceScatterPiece(x, course, scratch, begin, piece, round)) return trouble;
  }
  return std::nullopt;
}

MaybeTrouble AllToAll(FrameExchange& x, Course& course) {
  const Operation& operation = course.operation;
  const std::size_t bytes = operation.bytes;
  const std::size_t whole = bytes * static_cast<std::size_t>(x.size);
  const auto offset = [&](int rank) { return static_cast<std::size_t>(rank) * bytes; };
  auto* const input = const_cast<char*>(static_cast<const char*>(operation.input));
  auto* const output = static_cast<char*>(operation.output);
  std::memcpy(output + offset(x.rank), input + offset(x.rank), bytes);
  const PeerMesh::Registration source(x.mesh(), input, whole);
  const PeerMesh::Registration target(x.mesh(), output, whole);
  const int segments = SegmentsOf(bytes);
  const auto in_block = [&](int rank, int m) -> Slice {
    const Slice segment = SegmentAt(bytes, m);
    return {offset(rank) + segment.offset, segment.bytes};
  };
  for (int distance = 1; distance < x.size; ++distance) {
    const int to = x.Wrap(x.rank + distance);
    const int from = x.Wrap(x.rank - distance);
    auto trouble = x.RunPipeline(
        course,
        {.left = from,
         .right = to,
         .leading = segments,
         .received = segments,
         .sent = segments,
         .round = distance},
        [&](int m) -> FrameExchange::Target {
          return {target.get(), in_block(from, m)};
        },
        [&](int, const Slice&) {
          if (distance + 1 == x.size) course.AllJoined();
        },
        [&](int m) -> FrameExchange::Target {
          return {source.get(), in_block(to, m)};
        });
    if (trouble.has_value()) return trouble;
  }
  return std::nullopt;
}

MaybeTrouble Send(FrameExchange& x, Course& course) {
  const Operation& operation = course.operation;
  const int to = operation.peer();
  if (auto trouble = x.Send(course, to, 0, nullptr, 0)) return trouble;
  if (auto trouble = x.Receive(course, to, 1, 0)) return trouble;
  x.mesh().ReleaseFrame(to);
  course.AllJoined();
  const PeerMesh::Registration tensor(x.mesh(), operation.output, operation.bytes);
  const int segments = SegmentsOf(operation.bytes);
  const auto at = [&](int m) -> FrameExchange::Target {
    return {tensor.get(), SegmentAt(operation.bytes, m)};
  };
  return x.RunPipeline(
      course, {.right = to, .leading = segments, .sent = segments, .announced = true}, at,
      [](int, const Slice&) {}, at);
}

MaybeTrouble Recv(FrameExchange& x, Course& course) {
  const Operation& operation = course.operation;
  const int from = operation.peer();
  if (auto trouble = x.Receive(course, from, 0, 0)) return trouble;
  x.mesh().ReleaseFrame(from);
  course.AllJoined();
  if (auto trouble = x.Send(course, from, 1, nullptr, 0)) return trouble;
  const PeerMesh::Registration tensor(x.mesh(), operation.output, operation.bytes);
  const auto at = [&](int m) -> FrameExchange::Target {
    return {tensor.get(), SegmentAt(operation.bytes, m)};
  };
  return x.RunPipeline(
      course, {.left = from, .received = SegmentsOf(operation.bytes), .announced = true}, at,
      [](int, const Slice&) {}, at);
}

}  // namespace perdure::bulk
