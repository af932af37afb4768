// One TCP connection to every other rank, and what the algorithms need of it: frames and bulk data
// with absolute deadlines, one interrupt for everything, and knowing who is gone.
//
// Building it: 1 open the event loop and a listening pair for each peer; 2 exchange addresses over
// the control store; 3 the higher rank of each pair dials the lower one; 4 post two frame receives
// for each peer, which are kept posted from then on; 5 exchange hello frames, so that a stranger on
// the port or a peer of another generation is refused.
//
// Leaving in good order: 1 a goodbye frame to each peer; 2 wait until the kernels of the peers have
// everything that was sent (a close with unread bytes resets the connection and loses what is under
// way); 3 close. A connection that closes without a goodbye belongs to a process that died or has
// told the cause elsewhere, and interrupts whatever this rank waits for.
//
// Threads: one (the lane) sends and waits; Stop, Lost and the observer's call come from any.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/backends/gloo/frame.h"
#include "comm/backends/gloo/gloo_backend.h"
#include "comm/backends/gloo/transport.h"

namespace perdure {

class PeerMesh final : public PairObserver {
 public:
  static Result<std::unique_ptr<PeerMesh>> Connect(const Group& group, const GlooOptions& options,
                                                   KeyValue& store, FailureArbiter& arbiter,
                                                   Deadline deadline);
  ~PeerMesh() override;

  const Group& group() const { return group_; }

  // Memory of the caller, lent to Gloo until this is destroyed; after that Gloo cannot touch it,
  // also when something was still under way.
  class Registration {
   public:
    Registration(PeerMesh& mesh, void* data, std::size_t bytes);
    ~Registration();
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;
    WaitableBuffer* get() const { return buffer_.get(); }

   private:
    PeerMesh& mesh_;
    std::unique_ptr<WaitableBuffer> buffer_;
  };

  // Bulk data, in order for each peer. False: the connection is gone.
  bool PostSend(WaitableBuffer& buffer, int peer, std::size_t offset, std::size_t bytes);
  bool PostRecv(WaitableBuffer& buffer, int peer, std::size_t offset, std::size_t bytes);
  WaitOutcome AwaitRecv(WaitableBuffer& buffer, Deadline deadline);
  WaitOutcome AwaitSend(WaitableBuffer& buffer, Deadline deadline);

  // Copies header and payload (up to kEagerBytesMax) and sends them; waits only for the frame
  // before last to be gone.
  WaitOutcome SendFrame(int peer, FrameHeader header, const void* payload, std::size_t bytes,
                        Deadline deadline);
  // The next frame of the peer; stays valid until ReleaseFrame.
  WaitOutcome AwaitFrame(int peer, Deadline deadline);
  const FrameHeader& frame(int peer) const;
  const char* payload(int peer) const;
  void ReleaseFrame(int peer);

  // Why a wait on `peer` (-1: on several) ended with kInterrupted or kBroken. Waits for a moment
  // when that is still to be said.
  Trouble Explain(int peer);

  // Ends the wait that is going on, and all later ones. Any thread.
  void Stop();
  bool Lost(int peer) const;

  void Close(bool in_order, Deadline deadline);

  void OnPairClosed(int peer) noexcept override;

 private:
  struct Mailbox {
    std::array<std::vector<char>, 2> in_memory;
    std::array<std::vector<char>, 2> out_memory;
    std::array<std::unique_ptr<WaitableBuffer>, 2> in;
    std::array<std::unique_ptr<WaitableBuffer>, 2> out;
    std::array<bool, 2> out_under_way = {false, false};
    int next_in = 0;
    int next_out = 0;
  };

  PeerMesh(Group group, GlooOptions options);

  Status Open(KeyValue& store, FailureArbiter& arbiter, Deadline deadline);
  Status ConnectPairs(const std::vector<std::vector<char>>& addresses, FailureArbiter& arbiter,
                      Deadline deadline);
  Status SayHello(FailureArbiter& arbiter, Deadline deadline);
  bool SaidGoodbye(int peer);
  // Some connection is known to be closed, or Stop was called.
  bool HasCause() const;
  void Interrupt();
  void SayGoodbye(Deadline deadline);
  template <class Wait>
  WaitOutcome Guarded(WaitableBuffer& buffer, const Wait& wait);
  Mailbox& mailbox(int peer) { return *mailboxes_[static_cast<std::size_t>(peer)]; }
  const Mailbox& mailbox(int peer) const { return *mailboxes_[static_cast<std::size_t>(peer)]; }

  const Group group_;
  const GlooOptions options_;
  std::vector<std::atomic<bool>> lost_;  // by rank
  std::vector<std::atomic<bool>> left_;  // lost after a goodbye
  std::atomic<int> first_lost_{-1};      // without a goodbye
  std::atomic<bool> stopped_{false};     // by Stop
  std::atomic<bool> closing_{false};

  std::mutex wait_mutex_;
  std::condition_variable cause_known_;
  bool interrupted_ = false;           // under wait_mutex_
  WaitableBuffer* waiting_ = nullptr;  // under wait_mutex_

  // The lane. Buffers go before the context, which is closed first.
  std::shared_ptr<GuardedContext> context_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
};

}  // namespace perdure
