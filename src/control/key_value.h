// The control store as its users see it: a small map that lives in rank 0 of a generation.
//
// Through it ranks rendezvous, agree on checkpoints and tell each other first causes. It carries
// facts of a few kilobytes, never training data. Keys are paths, "/ckpt/5f1c/rank/3"; the
// generation is not part of the key: each connection carries it, and a request of another
// generation is refused (kFenced).
//
// Threads: every member may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "perdure/clock.h"
#include "perdure/status.h"

namespace perdure {

// A larger value is refused with kInvalidArgument. Under gRPC's default message limit of 4 MiB.
inline constexpr std::size_t kKeyValueBytesMax = 3u << 20;

class KeyValue {
 public:
  virtual ~KeyValue() = default;

  virtual Status Set(std::string_view key, std::string_view value, Deadline deadline) = 0;

  // Waits until the key exists; kDeadlineExceeded names the key.
  virtual Result<std::string> Get(std::string_view key, Deadline deadline) = 0;

  // Adds to a counter (0 when absent, kept as decimal text) and returns the sum.
  virtual Result<std::int64_t> Add(std::string_view key, std::int64_t amount,
                                   Deadline deadline) = 0;

  // Sets the key to `desired` when it holds `expected` ("" also stands for absent); returns what
  // the key holds afterwards, so the caller has won when that is `desired`.
  virtual Result<std::string> CompareAndSet(std::string_view key, std::string_view expected,
                                            std::string_view desired, Deadline deadline) = 0;

  // Removes all keys that begin with `prefix`; none is fine. Who waits for one goes on waiting.
  virtual Status Forget(std::string_view prefix, Deadline deadline) = 0;

  // Every call that waits, and every later one, fails at once with kAborted. The store itself and
  // its other users go on. Idempotent.
  virtual void Close() = 0;
};

}  // namespace perdure
