// The control store itself: the map behind KeyValue, with gets that wait. No thread, no clock and
// no socket: MemoryKeyValue puts it behind a function call, wire puts it behind gRPC.
//
// A get of a key that does not exist yet is kept as a callback, so ten thousand waiting ranks cost
// memory and no threads; who registers it also bounds it (Cancel when its deadline passes).
//
// Threads: every member may be called from any thread. Callbacks run on the thread that made the
// key appear (or closed the store), with no lock of the store held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/mutex.h"
#include "control/key_value.h"
#include "perdure/ids.h"
#include "perdure/status.h"

namespace perdure {

inline constexpr std::size_t kStoreKeyBytesMax = 1024;
inline constexpr std::size_t kStoreKeysMax = 1u << 20;
inline constexpr std::size_t kStoreBytesMax = std::size_t{512} << 20;  // keys and values together
inline constexpr std::size_t kStoreWaitersMax = 1u << 17;
// Additions remembered so that one sent again is not counted twice.
inline constexpr std::size_t kStoreOperationsRememberedMax = 1u << 14;

class StoreServer {
 public:
  using OnValue = std::function<void(Result<std::string>)>;
  using WaiterId = std::uint64_t;

  explicit StoreServer(Generation generation) : generation_(generation) {}
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  Generation generation() const { return generation_; }

  // Each of them: kFenced for a request of another generation, kInvalidArgument for a key or value
  // out of bounds, kResourceExhausted when the store is full, kUnavailable after Close.
  Status Set(Generation generation, std::string_view key, std::string_view value);
  // `operation_id` (may be empty) makes a repeated request count once.
  Result<std::int64_t> Add(Generation generation, std::string_view key, std::int64_t amount,
                           const std::string& operation_id);
  Result<std::string> CompareAndSet(Generation generation, std::string_view key,
                                    std::string_view expected, std::string_view desired);

  Status Forget(Generation generation, std::string_view prefix);

  // Calls `on_value` exactly once: at once when the key exists or the request is refused (the
  // result is then 0), else when the key appears, unless Cancel comes first.
  WaiterId Get(Generation generation, std::string_view key, OnValue on_value);

  // True: the waiter is gone and its callback will never run. False: it has run, or is running.
  bool Cancel(WaiterId waiter);

  // Refuses everything from now on and answers all waiters with kUnavailable.
  void Close();

  std::size_t waiters() const;
  std::size_t keys() const;

 private:
  using Waiters = std::map<WaiterId, OnValue>;

  Status Admit(Generation generation, std::string_view key, std::size_t value_bytes) const
      PERDURE_REQUIRES(mutex_);
  // Takes out the waiters of the key, for the caller to call without the lock.
  Result<Waiters> Store(std::string_view key, std::string_view value) PERDURE_REQUIRES(mutex_);

  const Generation generation_;
  mutable Mutex mutex_;
  bool closed_ PERDURE_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::string, std::less<>> values_ PERDURE_GUARDED_BY(mutex_);
  std::size_t bytes_ PERDURE_GUARDED_BY(mutex_) = 0;
  WaiterId last_waiter_ PERDURE_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Waiters, std::less<>> waiters_ PERDURE_GUARDED_BY(mutex_);
  std::unordered_map<WaiterId, std::string> waiting_key_ PERDURE_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::int64_t> done_operations_ PERDURE_GUARDED_BY(mutex_);
  std::deque<std::string> done_order_ PERDURE_GUARDED_BY(mutex_);
};

}  // namespace perdure
