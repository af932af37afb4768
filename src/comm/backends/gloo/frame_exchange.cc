#include "comm/backends/gloo/frame_exchange.h"

#include <fmt/format.h>

namespace perdure {

MaybeTrouble FrameExchange::From(WaitOutcome outcome, int peer, const Course& course) const {
  if (outcome == WaitOutcome::kDone) return std::nullopt;
  if (outcome == WaitOutcome::kLate) {
    return Trouble{.kind = Trouble::Kind::kDeadline, .peer = peer, .all_joined = course.all_joined};
  }
  return mesh_.Explain(peer);
}

MaybeTrouble FrameExchange::Send(Course& course, int peer, int round, const void* payload,
                                 std::size_t bytes) {
  FrameHeader header;
  header.round = static_cast<std::uint8_t>(round);
  header.sequence = course.operation.sequence;
  header.call = AsCompared(course.operation.call, rank);
  return From(mesh_.SendFrame(peer, header, payload, bytes, course.limit), peer, course);
}

MaybeTrouble FrameExchange::Receive(Course& course, int peer, int round, std::size_t bytes) {
  if (MaybeTrouble trouble = From(mesh_.AwaitFrame(peer, course.limit), peer, course)) {
    return trouble;
  }
  const FrameHeader& header = mesh_.frame(peer);
  if (header.kind == FrameKind::kGoodbye) {
    return Trouble{.kind = Trouble::Kind::kPeerLeft, .peer = peer};
  }
  const Operation& mine = course.operation;
  if (header.sequence != mine.sequence || !(header.call == AsCompared(mine.call, rank)) ||
      header.round != static_cast<std::uint8_t>(round) || header.payload_bytes != bytes) {
    return Trouble{
        .kind = Trouble::Kind::kMismatch,
        .peer = peer,
        .text = fmt::format("it called {} as operation {}, rank {} called {} as operation {}",
                            Describe(header.call), header.sequence, mesh_.group().self().value(),
                            Describe(mine.call), mine.sequence)};
  }
  course.Received(bytes);
  return std::nullopt;
}

}  // namespace perdure
