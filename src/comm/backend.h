// What differs between ways of moving bytes; everything else is in Communicator, the only caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/operation.h"
#include "perdure/clock.h"

namespace perdure {

// How long an operation may take (COMM-1, COMM-4).
struct Budget {
  Deadline end;         // of the caller, from end to end
  Duration not_joined;  // from the start, while some rank is not known to have joined
  Duration running;     // from when all ranks are known to have joined
};

// What a backend saw when an operation did not complete: evidence, not yet a verdict.
struct Trouble {
  enum class Kind : std::uint8_t {
    kPeerClosed,  // `peer` closed its connection without a word
    kPeerLeft,    // `peer` said goodbye before it took part in this operation
    kMismatch,    // `peer` called something else: `text` says what
    kDeadline,    // the budget is used up
    kWoken,       // Wake was called
    kLocal,       // this rank cannot take part: `text` says why
  };
  Kind kind = Kind::kLocal;
  int peer = -1;
  std::string text = {};
  bool all_joined = false;  // all ranks were known to have joined
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Performs the operation; nothing returned means done. `bytes_done` counts what was received of
  // it. On trouble the output is undefined, no memory of the caller is touched afterwards, and
  // nothing has been closed yet. Lane thread only.
  virtual std::optional<Trouble> Run(const Operation& operation, const Budget& budget,
                                     std::atomic<std::uint64_t>& bytes_done) = 0;

  // The operation that is running, and all later ones, return kWoken within milliseconds. Any
  // thread.
  virtual void Wake() = 0;

  // The connection to this peer is gone. Any thread.
  virtual bool Lost(int peer) const = 0;

  // Closes all connections; `in_order` first says goodbye and waits, until the deadline, for what
  // was sent to reach the peers. Lane thread, or when the lane has dropped this communicator.
  virtual void Close(bool in_order, Deadline deadline) = 0;
};

}  // namespace perdure
