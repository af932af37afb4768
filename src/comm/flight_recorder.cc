#include "comm/flight_recorder.h"

#include <algorithm>
#include <chrono>

namespace perdure {
namespace {

constexpr std::uint64_t kFailedBit = std::uint64_t{1} << 48;

std::int64_t Nanoseconds(MonotonicTime time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

std::uint64_t FlightRecorder::Submitted(std::uint32_t communicator, const Operation& operation,
                                        MonotonicTime now) {
  const std::uint64_t ticket = last_ticket_.fetch_add(1, std::memory_order_relaxed) + 1;
  Slot& slot = SlotOf(ticket);
  slot.ticket.store(0, std::memory_order_seq_cst);
  const Call& call = operation.call;
  slot.what.store(static_cast<std::uint64_t>(communicator) |
                      static_cast<std::uint64_t>(call.verb) << 32 |
                      static_cast<std::uint64_t>(call.dtype) << 40,
                  std::memory_order_release);
  slot.sequence.store(operation.sequence, std::memory_order_release);
  slot.count.store(call.count, std::memory_order_release);
  slot.bytes.store(operation.bytes, std::memory_order_release);
  slot.submitted.store(Nanoseconds(now), std::memory_order_release);
  slot.started.store(0, std::memory_order_release);
  slot.completed.store(0, std::memory_order_release);
  slot.ticket.store(ticket, std::memory_order_release);
  return ticket;
}

void FlightRecorder::Started(std::uint64_t ticket, MonotonicTime now) {
  SlotOf(ticket).started.store(Nanoseconds(now), std::memory_order_release);
}

void FlightRecorder::Completed(std::uint64_t ticket, MonotonicTime now, bool failed) {
  Slot& slot = SlotOf(ticket);
  if (failed) slot.what.fetch_or(kFailedBit, std::memory_order_release);
  slot.completed.store(Nanoseconds(now), std::memory_order_release);
}

std::vector<FlightRecord> FlightRecorder::Snapshot() const {
  std::vector<FlightRecord> records;
  records.reserve(kFlightRecordsMax);
  for (const Slot& slot : slots_) {
    FlightRecord record;
    record.ticket = slot.ticket.load(std::memory_order_acquire);
    if (record.ticket == 0) continue;
    const std::uint64_t what = slot.what.load(std::memory_order_acquire);
    record.communicator = static_cast<std::uint32_t>(what);
    record.verb = static_cast<Verb>((what >> 32) & 0xff);
    record.dtype = static_cast<DType>((what >> 40) & 0xff);
    record.failed = (what & kFailedBit) != 0;
    record.sequence = slot.sequence.load(std::memory_order_acquire);
    record.count = slot.count.load(std::memory_order_acquire);
    record.bytes = slot.bytes.load(std::memory_order_acquire);
    record.submitted = slot.submitted.load(std::memory_order_acquire);
    record.started = slot.started.load(std::memory_order_acquire);
    record.completed = slot.completed.load(std::memory_order_acquire);
    if (slot.ticket.load(std::memory_order_acquire) != record.ticket) continue;
    records.push_back(record);
  }
  std::sort(records.begin(), records.end(),
            [](const FlightRecord& a, const FlightRecord& b) { return a.ticket < b.ticket; });
  return records;
}

}  // namespace perdure
