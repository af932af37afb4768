// The server's side of many streams, each known by a key (a node's name; a generation and rank).
//
//  1. A peer's first message is its hello. Its key is read from it, and from then on Send reaches
//     the new stream, so that whoever reacts to the hello can answer before the hello itself is
//     answered.
//  2. `on_hello` decides. An error is the answer and ends the stream; a value is sent first, then
//     everything that Send had queued.
//  3. A new stream of a key replaces the old one, which is ended; its end is not reported, since
//     the key was never without a stream.
//  4. `on_disconnected` is called once for each greeted stream that was not replaced.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "perdure/clock.h"
#include "wire/duplex.h"

namespace perdure::wire {

// Streams open at the same time, greeted or not; one more is refused.
inline constexpr std::size_t kStreamsMax = 20000;

template <class Key, class In, class Out>
class StreamHub {
 public:
  struct Handler {
    std::function<Result<Key>(const In&)> key_of;
    std::function<Result<Out>(const In&)> on_hello;
    std::function<void(const Key&, const In&)> on_message;
    std::function<void(const Key&)> on_disconnected;
  };

  // Before the server starts.
  void Open(Handler handler) { handler_ = std::move(handler); }

  // One call of the service's method.
  grpc::ServerBidiReactor<In, Out>* Accept(grpc::CallbackServerContext* context) {
    std::shared_ptr<Stream> stream = Stream::Make(context);
    bool full = false;
    {
      MutexLock lock(mutex_);
      full = closing_ || open_ >= kStreamsMax;
      ++open_;
    }
    auto state = std::make_shared<StreamState>();
    typename Stream::Callbacks callbacks;
    callbacks.on_message = [this, state, weak = std::weak_ptr<Stream>(stream)](In message) {
      if (const std::shared_ptr<Stream> self = weak.lock()) OnMessage(*state, self, message);
    };
    callbacks.on_done = [this, state] { OnDone(*state); };
    stream->Start(stream, std::move(callbacks));
    if (full) {
      stream->CloseWhenSent(ToGrpc(Status(Code::kUnavailable, "no more streams are accepted")));
    }
    return stream.get();
  }

  bool Send(const Key& key, Out message, Slot slot = Slot::kOrdered) {
    std::shared_ptr<Stream> stream;
    {
      MutexLock lock(mutex_);
      const auto greeting = greeting_.find(key);
      if (greeting != greeting_.end()) {
        stream = greeting->second;
      } else if (const auto greeted = greeted_.find(key); greeted != greeted_.end()) {
        stream = greeted->second;
      }
    }
    return stream != nullptr && stream->Send(std::move(message), slot).ok();
  }

  // Ends all streams: in order until the deadline, then by force. No handler is called afterwards.
  void Close(const Status& farewell, Deadline deadline) {
    std::vector<std::shared_ptr<Stream>> streams;
    {
      MutexLock lock(mutex_);
      closing_ = true;
      for (const auto& [key, stream] : greeted_) streams.push_back(stream);
      for (const auto& [key, stream] : greeting_) streams.push_back(stream);
    }
    for (const auto& stream : streams) stream->CloseWhenSent(ToGrpc(farewell));
    MutexLock lock(mutex_);
    while (open_ > 0 && drained_.WaitUntil(mutex_, deadline)) {
    }
  }

  // After the server was shut down, which ends every call: returns when the last one is gone.
  void WaitUntilEmpty() {
    MutexLock lock(mutex_);
    while (open_ > 0) drained_.Wait(mutex_);
  }

 private:
  using Stream = ServerStream<In, Out>;

  // Touched only by the stream's own callbacks, which come one at a time.
  struct StreamState {
    std::optional<Key> key;  // once greeted
    std::weak_ptr<Stream> stream;
  };

  void OnMessage(StreamState& state, const std::shared_ptr<Stream>& stream, const In& message) {
    if (state.key.has_value()) {
      if (IsCurrent(*state.key, stream)) handler_.on_message(*state.key, message);
      return;
    }
    Result<Key> key = handler_.key_of(message);
    if (!key.ok()) return stream->CloseWhenSent(ToGrpc(key.status()));
    {
      MutexLock lock(mutex_);
      greeting_[*key] = stream;
    }
    Result<Out> answer = handler_.on_hello(message);
    std::shared_ptr<Stream> replaced;
    {
      MutexLock lock(mutex_);
      const auto greeting = greeting_.find(*key);
      if (greeting != greeting_.end() && greeting->second == stream) greeting_.erase(greeting);
      if (answer.ok()) {
        replaced = std::exchange(greeted_[*key], stream);
        state.key = *key;
        state.stream = stream;
      }
    }
    if (replaced != nullptr) {
      replaced->CloseWhenSent(ToGrpc(Status(Code::kUnavailable, "replaced by a newer connection")));
    }
    if (answer.ok()) {
      stream->ReleaseAfter(*std::move(answer));
    } else {
      stream->CloseWhenSent(ToGrpc(answer.status()));
    }
  }

  bool IsCurrent(const Key& key, const std::shared_ptr<Stream>& stream) {
    MutexLock lock(mutex_);
    const auto greeted = greeted_.find(key);
    return greeted != greeted_.end() && greeted->second == stream;
  }

  void OnDone(StreamState& state) {
    bool report = false;
    if (state.key.has_value()) {
      MutexLock lock(mutex_);
      const auto greeted = greeted_.find(*state.key);
      if (greeted != greeted_.end() && greeted->second == state.stream.lock()) {
        greeted_.erase(greeted);
        report = true;
      }
    }
    if (report) handler_.on_disconnected(*state.key);
    MutexLock lock(mutex_);
    --open_;
    drained_.NotifyAll();
  }

  Handler handler_;  // constant after Open

  Mutex mutex_;
  CondVar drained_;
  std::map<Key, std::shared_ptr<Stream>> greeting_ PERDURE_GUARDED_BY(mutex_);
  std::map<Key, std::shared_ptr<Stream>> greeted_ PERDURE_GUARDED_BY(mutex_);
  std::size_t open_ PERDURE_GUARDED_BY(mutex_) = 0;
  bool closing_ PERDURE_GUARDED_BY(mutex_) = false;
};

}  // namespace perdure::wire
