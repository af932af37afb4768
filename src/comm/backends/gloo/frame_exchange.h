// What all algorithms of the Gloo backend are made of: one frame sent, one frame received and
// compared, and a pipeline of segments. Lane thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "comm/backend.h"
#include "comm/backends/gloo/peer_mesh.h"
#include "comm/backends/gloo/ring_plan.h"

namespace perdure {

// Receives that a rank posts ahead in a pipeline.
inline constexpr int kPipelineWindow = 4;
inline constexpr std::size_t kSegmentBytesMax = 256 * 1024;

using MaybeTrouble = std::optional<Trouble>;

// What one operation carries along.
struct Course {
  const Operation& operation;
  const Budget& budget;
  std::atomic<std::uint64_t>& bytes_done;
  Deadline limit;  // the earlier of the caller's and what the budget allows in this state
  bool all_joined = false;

  void AllJoined() {
    if (std::exchange(all_joined, true)) return;
    limit = Earlier(budget.end, Deadline::After(budget.running));
  }
  void Received(std::size_t bytes) { bytes_done.fetch_add(bytes, std::memory_order_relaxed); }
};

class FrameExchange {
 public:
  // `mesh` outlives this.
  explicit FrameExchange(PeerMesh& mesh)
      : rank(mesh.group().rank), size(mesh.group().size()), mesh_(mesh) {}

  const int rank;
  const int size;

  PeerMesh& mesh() { return mesh_; }
  int Wrap(int other) const { return ((other % size) + size) % size; }

  // The frame of this operation, with a payload of up to kEagerBytesMax.
  MaybeTrouble Send(Course& course, int peer, int round, const void* payload, std::size_t bytes);
  // The peer's frame of this operation is there and says the same as ours; `bytes` of payload
  // follow in mesh().payload(peer), until ReleaseFrame.
  MaybeTrouble Receive(Course& course, int peer, int round, std::size_t bytes);

  struct Target {
    WaitableBuffer* buffer;
    Slice slice;
  };

  // A pipeline from the left neighbour to the right one: `leading` messages may be sent at once,
  // and message m + leading when message m has been received and treated.
  struct Pipeline {
    int left = -1;   // none: nothing is received
    int right = -1;  // none: nothing is sent
    int leading = 0;
    int received = 0;  // messages
    int sent = 0;
    int round = 0;           // of the frames in front
    bool announced = false;  // the frames went before
  };

  // RecvAt(m) -> {buffer, piece}; OnReceived(m, piece); SendAt(m) -> {buffer, piece}.
  template <class RecvAt, class OnReceived, class SendAt>
  MaybeTrouble RunPipeline(Course& course, const Pipeline& pipe, const RecvAt& recv_at,
                           const OnReceived& on_received, const SendAt& send_at) {
    std::vector<WaitableBuffer*> under_way;
    const auto post_recv = [&](int message) -> MaybeTrouble {
      const auto [buffer, piece] = recv_at(message);
      if (piece.bytes == 0 || mesh_.PostRecv(*buffer, pipe.left, piece.offset, piece.bytes)) {
        return std::nullopt;
      }
      return mesh_.Explain(pipe.left);
    };
    const auto post_send = [&](int message) -> MaybeTrouble {
      const auto [buffer, piece] = send_at(message);
      if (piece.bytes == 0) return std::nullopt;
      if (!mesh_.PostSend(*buffer, pipe.right, piece.offset, piece.bytes)) {
        return mesh_.Explain(pipe.right);
      }
      under_way.push_back(buffer);
      return std::nullopt;
    };

    if (pipe.sent > 0 && !pipe.announced) {
      if (auto trouble = Send(course, pipe.right, pipe.round, nullptr, 0)) return trouble;
    }
    for (int m = 0; m < std::min(pipe.leading, pipe.sent); ++m) {
      if (auto trouble = post_send(m)) return trouble;
    }
    if (pipe.received > 0 && !pipe.announced) {
      if (auto trouble = Receive(course, pipe.left, pipe.round, 0)) return trouble;
      mesh_.ReleaseFrame(pipe.left);
    }
    // Not before the frame was compared: a message longer than its buffer makes Gloo break the
    // connection, which would look like a death to the peer.
    for (int m = 0; m < std::min(kPipelineWindow, pipe.received); ++m) {
      if (auto trouble = post_recv(m)) return trouble;
    }
    for (int m = 0; m < pipe.received; ++m) {
      const auto [buffer, piece] = recv_at(m);
      if (piece.bytes > 0) {
        if (auto trouble = From(mesh_.AwaitRecv(*buffer, course.limit), pipe.left, course)) {
          return trouble;
        }
        course.Received(piece.bytes);
      }
      on_received(m, piece);
      if (m + pipe.leading < pipe.sent) {
        if (auto trouble = post_send(m + pipe.leading)) return trouble;
      }
      if (m + kPipelineWindow < pipe.received) {
        if (auto trouble = post_recv(m + kPipelineWindow)) return trouble;
      }
    }
    for (WaitableBuffer* buffer : under_way) {
      if (auto trouble = From(mesh_.AwaitSend(*buffer, course.limit), pipe.right, course)) {
        return trouble;
      }
    }
    return std::nullopt;
  }

 private:
  MaybeTrouble From(WaitOutcome outcome, int peer, const Course& course) const;

  PeerMesh& mesh_;
};

}  // namespace perdure
