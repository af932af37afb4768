// One end of a bidirectional gRPC stream, with a bounded queue of what is to be sent.
//
// Both ends follow the same rules:
//  1. at most one write is in flight; it is chosen under the lock and started without it, because
//     gRPC may run callbacks on the thread that starts an operation;
//  2. a message of Slot::kLatest replaces one of its kind that still waits;
//  3. once a read has failed the stream is broken: what waits is dropped, nothing more is started,
//     and the end is declared when the write in flight has come back;
//  4. the object holds itself until gRPC has called OnDone, which is the last callback.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/server_callback.h>

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "perdure/status.h"
#include "wire/grpc_status.h"

namespace perdure::wire {

// Messages that wait to be sent on one stream; one more is refused.
inline constexpr std::size_t kStreamQueueMax = 4096;

enum class Slot : std::uint8_t {
  kOrdered,  // kept in order
  kLatest,   // replaces what waits in the same slot
};

// `Reactor` is gRPC's ServerBidiReactor or ClientBidiReactor.
template <class Reactor, class In, class Out>
class Duplex : public Reactor {
 public:
  // Never blocks. kUnavailable: the stream is closing or broken; kResourceExhausted: the queue is
  // full.
  Status Send(Out message, Slot slot) {
    {
      MutexLock lock(mutex_);
      if (closing_ || broken_) return Status(Code::kUnavailable, "the stream is closed");
      if (slot == Slot::kLatest && ReplaceLatest(message)) return Ok();
      if (queue_.size() >= kStreamQueueMax) {
        return Status(Code::kResourceExhausted, "too many messages wait on the stream");
      }
      queue_.push_back({std::move(message), slot});
    }
    Pump();
    return Ok();
  }

  // Sends what waits, then ends the stream (a server with `status`).
  void CloseWhenSent(grpc::Status status) {
    {
      MutexLock lock(mutex_);
      if (closing_) return;
      closing_ = true;
      close_status_ = std::move(status);
      if (held_) queue_.clear();  // refused: nothing that was meant for a greeted peer may leave
    }
    Pump();
  }

  // What was sent so far waits until this: the stream answers the hello first.
  void ReleaseAfter(Out first) {
    {
      MutexLock lock(mutex_);
      queue_.push_front({std::move(first), Slot::kOrdered});
      held_ = false;
    }
    Pump();
  }

  bool Idle() const {
    MutexLock lock(mutex_);
    return broken_ || (queue_.empty() && !busy_);
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      In message;
      std::swap(message, incoming_);
      OnMessage(std::move(message));
      if (ReadOn()) this->StartRead(&incoming_);
      return;
    }
    {
      MutexLock lock(mutex_);
      broken_ = true;
      queue_.clear();
    }
    Pump();
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      busy_ = false;
      if (!ok) queue_.clear();  // the read fails as well, and says so
    }
    Pump();
  }

 protected:
  enum class End : std::uint8_t { kServer, kClient };
  // A server holds its messages until the hello is answered.
  explicit Duplex(End end) : end_(end), held_(end == End::kServer) {}

  // On gRPC's threads, one at a time.
  virtual void OnMessage(In message) = 0;
  // Once, when nothing is in flight and nothing more will be written. `broken`: the other side is
  // gone or has ended the stream.
  virtual void OnQuiet(bool broken, const grpc::Status& status) = 0;

  void ReadFirst() { this->StartRead(&incoming_); }
  void NotBusy() {
    MutexLock lock(mutex_);
    busy_ = false;
  }

  // Starts what is next, if anything can be started.
  void Pump() {
    bool quiet = false;
    bool broken = false;
    grpc::Status status;
    {
      MutexLock lock(mutex_);
      if (busy_) return;
      if (!broken_ && !queue_.empty() && !held_) {
        outgoing_ = std::move(queue_.front().message);
        queue_.pop_front();
        busy_ = true;
      } else if (broken_ ? !ended_ : (closing_ && !quiet_)) {
        quiet = true;
        quiet_ = true;
        broken = broken_;
        ended_ = ended_ || broken_;
        if (!broken_) busy_ = true;  // until the end was started
        status = close_status_;
      } else {
        return;
      }
    }
    if (quiet) {
      OnQuiet(broken, status);
    } else {
      this->StartWrite(&outgoing_);
    }
  }

  void Hold(std::shared_ptr<void> self) { self_ = std::move(self); }
  std::shared_ptr<void> LetGo() { return std::move(self_); }

 private:
  struct Waiting {
    Out message;
    Slot slot;
  };

  // A server reads nothing after it has finished; a client reads to the end.
  bool ReadOn() const {
    MutexLock lock(mutex_);
    return end_ == End::kClient || !quiet_;
  }

  bool ReplaceLatest(Out& message) PERDURE_REQUIRES(mutex_) {
    for (Waiting& waiting : queue_) {
      if (waiting.slot != Slot::kLatest) continue;
      waiting.message = std::move(message);
      return true;
    }
    return false;
  }

  const End end_;
  In incoming_;                 // owned by the read in flight
  Out outgoing_;                // owned by the write in flight
  std::shared_ptr<void> self_;  // until OnDone

  mutable Mutex mutex_;
  std::deque<Waiting> queue_ PERDURE_GUARDED_BY(mutex_);
  bool held_ PERDURE_GUARDED_BY(mutex_);          // the hello is not answered yet
  bool busy_ PERDURE_GUARDED_BY(mutex_) = false;  // an operation of the sending side is in flight
  bool closing_ PERDURE_GUARDED_BY(mutex_) = false;  // nothing new is accepted
  bool broken_ PERDURE_GUARDED_BY(mutex_) = false;   // the reading side has ended
  bool quiet_ PERDURE_GUARDED_BY(mutex_) = false;    // the end of sending was declared
  bool ended_ PERDURE_GUARDED_BY(mutex_) = false;    // the end of both sides was declared
  grpc::Status close_status_ PERDURE_GUARDED_BY(mutex_);
};

// The server's end. Ends with Finish, once.
template <class In, class Out>
class ServerStream : public Duplex<grpc::ServerBidiReactor<In, Out>, In, Out> {
 public:
  using Base = Duplex<grpc::ServerBidiReactor<In, Out>, In, Out>;

  struct Callbacks {
    std::function<void(In)> on_message;
    std::function<void()> on_done;
  };

  // The reactor for one call; deletes itself after on_done.
  static std::shared_ptr<ServerStream> Make(grpc::CallbackServerContext* context) {
    return std::shared_ptr<ServerStream>(new ServerStream(context));
  }

  void Start(std::shared_ptr<ServerStream> self, Callbacks callbacks) {
    callbacks_ = std::move(callbacks);
    this->Hold(std::move(self));
    this->ReadFirst();
  }

  void Cancel() { context_->TryCancel(); }

  void OnDone() override {
    const std::shared_ptr<void> self = this->LetGo();
    callbacks_.on_done();
    callbacks_ = {};
  }

 protected:
  void OnMessage(In message) override { callbacks_.on_message(std::move(message)); }

  void OnQuiet(bool, const grpc::Status& status) override { this->Finish(status); }

 private:
  explicit ServerStream(grpc::CallbackServerContext* context)
      : Base(Base::End::kServer), context_(context) {}

  grpc::CallbackServerContext* const context_;  // lives until OnDone
  Callbacks callbacks_;
};

// The client's end. gRPC calls OnDone when reads have failed and the hold is removed.
template <class In, class Out>
class ClientStream : public Duplex<grpc::ClientBidiReactor<Out, In>, In, Out> {
 public:
  using Base = Duplex<grpc::ClientBidiReactor<Out, In>, In, Out>;

  struct Callbacks {
    std::function<void(In)> on_message;
    std::function<void(const grpc::Status&)> on_done;
  };

  static std::shared_ptr<ClientStream> Make() {
    return std::shared_ptr<ClientStream>(new ClientStream());
  }

  grpc::ClientContext& context() { return context_; }

  // After the stub has bound the reactor to a call.
  void Start(std::shared_ptr<ClientStream> self, Callbacks callbacks) {
    callbacks_ = std::move(callbacks);
    this->Hold(std::move(self));
    this->AddHold();
    this->ReadFirst();
    this->StartCall();
  }

  void Cancel() { context_.TryCancel(); }

  void OnWritesDoneDone(bool) override {
    this->NotBusy();
    this->Pump();
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<void> self = this->LetGo();
    callbacks_.on_done(status);
    callbacks_ = {};
  }

 protected:
  void OnMessage(In message) override { callbacks_.on_message(std::move(message)); }

  void OnQuiet(bool broken, const grpc::Status&) override {
    if (broken) {
      this->RemoveHold();
    } else {
      this->StartWritesDone();
    }
  }

 private:
  ClientStream() : Base(Base::End::kClient) {}

  grpc::ClientContext context_;
  Callbacks callbacks_;
};

}  // namespace perdure::wire
