// Where did the time go? From journalled facts to buckets that sum to wall time to the millisecond
// (ACCT-1), the effective training time ratio, and what each interruption cost. Pure.
//
// The wall time of a job is cut at the moments that the journal knows:
//
//   begun … decided          queued: waiting for nodes (later: for nodes, or for the backoff)
//   decided … opened         init (first generation) or restart: processes start
//   opened … last step       as the ranks themselves counted, mean over ranks; what they did not
//                            count is other
//   last step … last sign    lost, when the generation was interrupted: the step that did not end
//   last sign … decision     detection; the last sign of a crash is the crash itself
//   decision … all gone      restart
//
// Steps that were done and then rolled back are moved from compute, communication and data to lost,
// once: a generation's step counts if no later generation restored an earlier one.
//
// ETTR = (compute + communication + data) / wall, all of steps that count, from the moment the job
// first asked for its nodes. Time in the queue counts as wall time.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/messages.h"

namespace perdure {

enum class Bucket : std::uint8_t {
  kCompute,
  kCommunication,
  kData,
  kCheckpoint,
  kInit,
  kRestore,
  kLost,
  kDetection,
  kRestart,
  kQueued,
  kEvaluation,
  kOther,
};
inline constexpr std::size_t kBuckets = 12;
std::string_view NameOf(Bucket bucket);

// Times in milliseconds since the beginning of the journal.
struct GenerationFacts {
  std::int64_t number = 0;
  std::int64_t decided_ms = 0;
  std::optional<std::int64_t> opened_ms;
  bool restored = false;
  std::int64_t restored_step = -1;  // -1: fresh
  std::optional<std::int64_t> first_step_ms;
  std::optional<std::int64_t> last_completed_ms;
  std::int64_t completed = -1;                   // highest step completed in this generation
  TimeSpent spent;                               // mean over ranks, as of the last completed step
  std::optional<std::int64_t> last_progress_ms;  // set when it was interrupted
  std::optional<std::int64_t> judged_ms;
  std::optional<std::int64_t> ended_ms;
};

struct InterruptionFacts {
  std::string time;  // RFC 3339
  std::int64_t generation = 0;
  std::optional<std::int64_t> rank;
  std::string node;
  std::string failure_class;
  std::string reason;
  std::int64_t last_progress_ms = 0;
  std::int64_t judged_ms = 0;
  std::int64_t completed = -1;
};

struct JobFacts {
  std::int64_t begun_ms = 0;
  std::int64_t until_ms = 0;  // now, or the end of the job
  std::vector<GenerationFacts> generations;
  std::vector<InterruptionFacts> interruptions;
};

struct InterruptionCost {
  InterruptionFacts facts;
  double detected_seconds = 0;              // last sign of life -> decision
  std::optional<double> recovered_seconds;  // decision -> first new step; none: not yet
  std::int64_t steps_lost = 0;
};

struct Accounting {
  std::int64_t wall_ms = 0;
  std::array<std::int64_t, kBuckets> ms{};  // by Bucket; their sum is wall_ms
  double ettr = 0;
  std::optional<double> mean_seconds_between_interruptions;
  std::optional<double> mean_recovery_seconds;
  std::int64_t steps_lost = 0;
  std::vector<InterruptionCost> interruptions;

  std::int64_t of(Bucket bucket) const { return ms[static_cast<std::size_t>(bucket)]; }
};

Accounting Account(const JobFacts& facts);

// The JSON of `perdure report --format json`, an object as text.
std::string AccountingJson(const Accounting& accounting);

// For people: interruptions with what was blamed, detection, recovery, steps lost; buckets; ETTR.
std::string AccountingTable(const Accounting& accounting);

}  // namespace perdure
