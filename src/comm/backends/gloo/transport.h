// Gloo's TCP transport, made fit for bounded operations. What is different from Gloo's own classes:
// * WaitableBuffer waits until an absolute deadline and can be interrupted; a wait that ends late
//   breaks nothing (Gloo's own closes every connection of the context).
// * GuardedPair waits for its lock a moment instead of spinning on it, keeps exceptions of the
// event loop's thread inside (Gloo's own would end the
//   process when a peer sends more than was asked for), dials without waiting, and tells when its
//   connection is gone.
#pragma once

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "perdure/clock.h"
#include "perdure/status.h"

namespace perdure {

enum class WaitOutcome { kDone, kLate, kInterrupted, kBroken };

class WaitableBuffer final : public gloo::transport::tcp::UnboundBuffer {
 public:
  using UnboundBuffer::UnboundBuffer;

  // One completed receive or send is consumed by kDone. kBroken: a connection that this buffer
  // waits for is gone.
  WaitOutcome AwaitRecv(Deadline deadline);
  WaitOutcome AwaitSend(Deadline deadline);
  // Both waits, now and later, end with kInterrupted unless they are done. Any thread.
  void Interrupt();
  // A receive has completed and was not consumed yet.
  bool HasReceived();

  // Lane thread: what was posted and not yet awaited.
  void CountPosted() { ++under_way_; }
  bool idle() const { return under_way_ == 0; }

 private:
  WaitOutcome Await(std::condition_variable& changed, int& completions, Deadline deadline);
  bool interrupted_ = false;  // under m_
  int under_way_ = 0;         // lane thread
};

class PairObserver {
 public:
  virtual ~PairObserver() = default;
  // With the pair's lock held, on any thread; must not call back into the pair.
  virtual void OnPairClosed(int peer) noexcept = 0;
};

class GuardedPair final : public gloo::transport::tcp::Pair {
 public:
  GuardedPair(gloo::transport::tcp::Context* context, gloo::transport::tcp::Device* device,
              int peer, std::chrono::milliseconds timeout, PairObserver& observer);

  void handleEvents(int events) override;

  // While it is held, the event loop does not touch any buffer on behalf of this pair.
  std::unique_lock<std::mutex> Hold() { return std::unique_lock<std::mutex>(m_); }

  // Stops listening and begins to connect to the peer's listening address; does not wait.
  Status Dial(const std::vector<char>& address);
  // Until connected (by dialling or by being dialled).
  WaitOutcome AwaitConnected(Deadline deadline);
  // Bytes that were sent and have not yet arrived in the peer's kernel; 0 when closed.
  int BytesUnderWay();

 protected:
  void changeState(state next) noexcept override;

 private:
  PairObserver& observer_;
};

class GuardedContext final : public gloo::transport::tcp::Context {
 public:
  // `observer` outlives the pairs.
  GuardedContext(std::shared_ptr<gloo::transport::tcp::Device> device, int rank, int size,
                 PairObserver& observer);
  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override;
  GuardedPair& pair(int peer) { return static_cast<GuardedPair&>(*getPair(peer)); }

 private:
  PairObserver& observer_;
};

// Opens the event loop (one thread) for an interface, or for an address when `interface` is empty.
Result<std::shared_ptr<gloo::transport::tcp::Device>> OpenGlooDevice(const std::string& interface,
                                                                     const std::string& host);

}  // namespace perdure
