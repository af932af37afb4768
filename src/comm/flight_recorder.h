// What ran: a fixed ring of the last operations of this process. Writing takes no lock, allocates
// nothing and costs a few stores; reading never disturbs a writer.
//
// A slot is written like this: 1 its ticket is set to 0 (readers skip it); 2 the fields are
// written; 3 the ticket is set to the operation's number. A reader takes the ticket, the fields,
// and the ticket again, and keeps the record when both tickets are the same and not 0.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "comm/operation.h"
#include "perdure/clock.h"

namespace perdure {

// More than can be in flight at once (kLaneDepthMax), so an operation in flight is never
// overwritten.
inline constexpr std::size_t kFlightRecordsMax = 1024;

struct FlightRecord {
  std::uint64_t ticket = 0;  // number among all operations of the process, from 1
  std::uint32_t communicator = 0;
  std::uint64_t sequence = 0;
  Verb verb = Verb::kBarrier;
  DType dtype = DType::kU8;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  // Nanoseconds of the monotonic clock; 0: not yet.
  std::int64_t submitted = 0;
  std::int64_t started = 0;
  std::int64_t completed = 0;
  bool failed = false;
  friend bool operator==(const FlightRecord&, const FlightRecord&) = default;
};

class FlightRecorder {
 public:
  // Number of the new record. Any thread.
  std::uint64_t Submitted(std::uint32_t communicator, const Operation& operation,
                          MonotonicTime now);
  void Started(std::uint64_t ticket, MonotonicTime now);
  void Completed(std::uint64_t ticket, MonotonicTime now, bool failed);

  // The records that could be read whole, oldest first.
  std::vector<FlightRecord> Snapshot() const;

 private:
  struct Slot {
    std::atomic<std::uint64_t> ticket{0};
    std::atomic<std::uint64_t> what{0};  // communicator, verb, dtype, failed
    std::atomic<std::uint64_t> sequence{0};
    std::atomic<std::uint64_t> count{0};
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::int64_t> submitted{0};
    std::atomic<std::int64_t> started{0};
    std::atomic<std::int64_t> completed{0};
  };

  Slot& SlotOf(std::uint64_t ticket) { return slots_[ticket % kFlightRecordsMax]; }

  std::atomic<std::uint64_t> last_ticket_{0};
  std::array<Slot, kFlightRecordsMax> slots_;
};

}  // namespace perdure
