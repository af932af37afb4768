// The words that rank, agent and supervisor say to each other, as plain structs. `wire` carries
// them; no room but wire knows protobuf.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "perdure/checkpoint.h"
#include "perdure/clock.h"
#include "perdure/health.h"
#include "perdure/ids.h"
#include "perdure/status.h"

namespace perdure {

// ---------------------------------------------------------------- rank -> agent (-> supervisor)

// First message of a rank's stream. `token` is what the agent put into the rank's environment
// (PERDURE_RANK_TOKEN), so that no other process on the machine can speak for it.
struct RankHello {
  std::string job;
  Generation generation;
  Rank rank;
  std::int64_t pid = 0;
  std::string token;
};

// Where a communicator stands on this rank. `signature` hashes what operation `submitted` is.
struct CommProgress {
  std::string communicator;
  std::uint64_t submitted = 0;
  std::uint64_t started = 0;
  std::uint64_t completed = 0;
  std::uint64_t signature = 0;
  friend bool operator==(const CommProgress&, const CommProgress&) = default;
};

// Where this rank's time of this generation went so far, in seconds. The names are those of the
// accounting (contracts of `perdure report`); the sum is the time since the process opened its
// session.
struct TimeSpent {
  double compute = 0;
  double communication = 0;  // not hidden behind compute
  double data = 0;
  double checkpoint = 0;  // training stood still for a save
  double init = 0;
  double restore = 0;
  double eval = 0;
  double other = 0;
  friend bool operator==(const TimeSpent&, const TimeSpent&) = default;
};

// The heartbeat: sent every 500 ms, and at once (at most 10 per second) when step or phase changes.
struct RankReport {
  Generation generation;
  Rank rank;
  Step step{-1};            // the step being done, or last done; -1 before the first
  Step completed_step{-1};  // the last step that ended in this generation; -1 before the first
  Phase phase = Phase::kInit;
  std::string phase_name;  // the program's own name for it, when it gave one
  Duration time_in_phase{};
  std::optional<Duration> phase_deadline;  // when the program gave one
  std::vector<CommProgress> communicators;
  std::int64_t samples = 0;  // consumed in this generation
  std::optional<double> loss;
  bool loss_finite = true;
  TimeSpent time_spent;
};

// Rank 0 bound the control store.
struct StoreReady {
  std::string address;  // "host:port"
};

// Every rank has restored (or begun afresh); the forks are written. Sent by rank 0.
struct RestoreDone {
  bool fresh = true;
  Step step{-1};
  Generation from_generation;
  std::vector<std::pair<std::string, std::string>> passed_over;
};

// Sent by rank 0 when a checkpoint is durable.
struct CheckpointCommitted {
  Step step;
  Generation generation;
  std::string attempt;
  std::int64_t bytes = 0;
  double seconds = 0;      // capture to durable
  double age_seconds = 0;  // since the step it holds ended
};

struct CheckpointFailed {
  Step step;
  std::string reason;
  int in_a_row = 1;
};

// A scheduled save was not taken, as SaveWhenBusy::kSkip says.
struct CheckpointSkipped {
  Step step;
  std::string reason;
  std::int64_t skipped = 1;  // so far, in this generation
};

// A rank's collective failed. Told before anything is closed.
struct CommFailed {
  CommFailure failure;
  std::string message;
};

// Sent just before the rank leaves, with what its body returned. `code` ok: done.
struct RankLeaving {
  Code code = Code::kOk;
  std::string message;
  bool durable = true;  // everything it was asked to save is on disk
};

// ---------------------------------------------------------------- agent (or supervisor) -> rank

enum class ResumeMode : std::uint8_t { kAuto, kRequire, kNever };

// What a generation is to restore.
struct RestorePolicy {
  ResumeMode mode = ResumeMode::kAuto;
  std::vector<std::string> avoid;  // checkpoint directory names that crashed their loaders twice
  std::vector<SampleRange> skip_samples;  // to be written into this generation's fork
  std::string reason;                     // why this generation exists: the fork's `reason`
  friend bool operator==(const RestorePolicy&, const RestorePolicy&) = default;
};

// What becomes of a scheduled save that is due while the one before is still being written.
enum class SaveWhenBusy : std::uint8_t { kWait, kSkip, kQueue };

// How the ranks of a job save.
struct CheckpointSettings {
  std::string directory;            // absolute; empty: checkpoints are off
  std::int64_t interval_steps = 0;  // 0: only on request
  bool async_save = true;
  int keep_last_n = 3;
  int stop_after = 3;                  // failed saves in a row; 0: never
  std::int64_t staging_bytes_max = 0;  // of a rank's copies of its state; 0: as many as there are
  SaveWhenBusy when_busy = SaveWhenBusy::kWait;
  std::int64_t keep_every_steps = 0;  // also the first at or after each multiple; 0: none
  // Without interval_steps: chosen from what is measured.
  bool interval_auto = false;    // the cheapest interval
  std::int64_t max_lost_ms = 0;  // no more work than this may be lost; 0: no bound
  // For a fresh start: foreign safetensors files, and names in the program → names in them.
  std::string init_from;  // absolute; empty: none
  std::map<std::string, std::string> init_names;
  friend bool operator==(const CheckpointSettings&, const CheckpointSettings&) = default;
};

// Of the job before this generation.
struct JobPast {
  std::int64_t interruptions = 0;
  Duration up{};  // how long its generations ran
  friend bool operator==(const JobPast&, const JobPast&) = default;
};

// Answer to RankHello.
struct RankWelcome {
  RestorePolicy restore;
  CheckpointSettings checkpoint;
  JobPast past;
  Duration init_deadline = std::chrono::seconds(900);
  Duration restore_deadline = std::chrono::seconds(900);
  Duration collective_deadline = std::chrono::seconds(120);  // all have joined
  Duration not_joined_deadline = std::chrono::seconds(300);  // somebody has not
  Duration checkpoint_deadline = std::chrono::seconds(300);
  Duration preemption_grace = std::chrono::seconds(120);
};

// Where rank 0's control store is.
struct StoreAddress {
  std::string address;
};

struct PeerDead {
  Rank rank;
  std::string reason;  // "killed by signal 9 on node b"
};

struct Fenced {
  std::string reason;
};

struct StopRank {
  bool abort = true;  // false: preemption; take one coordinated checkpoint, then leave
  std::string reason;
};

struct CheckpointNow {};

struct DumpRequest {
  std::string reason;
};

// ---------------------------------------------------------------- agent -> supervisor

struct RunningRank {
  Generation generation;
  Rank rank;
  std::int64_t pid = 0;
};

struct AgentHello {
  std::string job;
  std::string node;
  std::map<std::string, std::string> labels;
  int capacity = 0;  // ranks this node can hold
  std::string token;
  std::int64_t agent_pid = 0;
  std::string incarnation;           // random, new with each agent process
  std::vector<RunningRank> running;  // processes alive now: the truth about processes
};

struct SupervisorHello {
  std::int64_t term = 0;  // number of times a supervisor has started on this journal
  Duration lease{};
  std::uint64_t acknowledged = 0;  // agent events up to this number are journalled
};

// What only the agent can see of a rank, merged with the rank's own report once a second.
enum class ProcessState : std::uint8_t { kRunning, kStopped, kUninterruptible, kZombie, kGone };

struct RankObservation {
  Generation generation;
  Rank rank;
  std::int64_t pid = 0;
  ProcessState process = ProcessState::kRunning;
  double cpu_seconds = 0;
  std::int64_t resident_bytes = 0;
  Duration report_age{};             // since the rank's own last report arrived at the agent
  std::optional<RankReport> report;  // none before the first
};

struct NodeReport {
  std::string node;
  std::vector<RankObservation> ranks;
};

// The process of a rank ended. Exactly one of exit_code and signal is set.
struct RankExited {
  Generation generation;
  Rank rank;
  std::optional<int> exit_code;
  std::optional<int> signal;
  std::optional<RankLeaving> leaving;  // what it said before, if it did
  double lifetime_seconds = 0;
  std::string last_error_line;  // from the rank's log; empty when there is none
};

// A rank could not be started on this node.
struct RankStartFailed {
  Generation generation;
  Rank rank;
  std::string reason;
};

// All processes of a generation on this node are gone, or are known not to go (`unkillable` pids).
struct GenerationEnded {
  Generation generation;
  std::vector<std::int64_t> unkillable;
};

// One rank's message, carried up by its agent.
template <class Message>
struct FromRank {
  Generation generation;
  Rank rank;
  Message message;
};

// Stacks, rings and process states of this node's ranks.
struct Evidence {
  Generation generation;
  std::string node;
  std::vector<std::pair<Rank, std::string>> texts;
};

// ---------------------------------------------------------------- supervisor -> agent

struct StartRank {
  Rank rank;
  int local_rank = 0;
};

// Start these ranks of a generation on this node. Idempotent by (generation, rank), ended ranks
// included.
struct StartRanks {
  Generation generation;
  int world_size = 0;
  int group_rank = 0;  // index of the node in the generation
  int local_world_size = 0;
  std::string master_addr;
  int master_port = 0;  // for the user's own code
  int restart_count = 0;
  RankWelcome welcome;
  std::vector<std::string> command;        // argv
  std::map<std::string, std::string> env;  // from the job file, on top of the agent's own
  std::string working_directory;           // absolute
  Duration stop_grace = std::chrono::seconds(15);
  std::vector<StartRank> ranks;
};

// End every process of this generation on this node: abort message, SIGCONT, SIGTERM, grace,
// SIGKILL.
struct StopGeneration {
  Generation generation;
  bool abort = true;  // false: preemption
  std::string reason;
  Duration grace{};
};

// Everything of a generation up to this one is fenced on this node.
struct FenceGeneration {
  Generation up_to;
  std::string reason;
};

struct CollectEvidence {
  Generation generation;
  Duration budget{};
  std::string reason;
};

// Send SIGKILL or SIGSTOP or SIGCONT to a rank: fault drills.
struct SignalRank {
  Generation generation;
  Rank rank;
  int signal = 0;
};

// The job is over; the agent ends what it has and exits.
struct Shutdown {
  std::string reason;
};

}  // namespace perdure
