// What the decision core knows. `durable` is a function of the journalled events; `seen` is what
// the reports of this supervisor's lifetime show and is empty after a restart.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "control/messages.h"
#include "supervisor/core/event.h"

namespace perdure::core {

enum class JobPhase : std::uint8_t {
  kWaiting,   // for nodes, or for the backoff to pass
  kRunning,   // a generation is at work
  kJudging,   // something is wrong; collecting evidence, or waiting for the first cause
  kStopping,  // the generation is being ended
  kLeaving,   // one coordinated checkpoint, then the end
  kDone,      // FinishJob was decided
};
std::string_view NameOf(JobPhase phase);

struct Node {
  std::string name;
  std::string incarnation;
  std::string address;  // for MASTER_ADDR
  int capacity = 0;
  std::int64_t agent_pid = 0;
  std::uint64_t acknowledged = 0;
  std::int64_t term_seen = 0;    // the supervisor's term in which it last said hello
  bool present = false;          // has an agent that is not lost
  std::vector<Duration> blames;  // within the window
  int isolations = 0;
  std::optional<Duration> isolated_until;
  std::string isolation_reason;
  bool isolation_certain = false;  // not to be used even when the job would stand still
  Generation busy_with;            // still runs processes of this old generation; 0: none
  friend bool operator==(const Node&, const Node&) = default;
  bool usable() const { return present && !isolated_until.has_value() && busy_with.value() == 0; }
};

struct RankEnd {
  std::optional<int> exit_code;
  std::optional<int> signal;
  bool durable = true;
  Code said = Code::kOk;
  bool asked = false;  // ended by the supervisor's own stop: a consequence
  friend bool operator==(const RankEnd&, const RankEnd&) = default;
};

// The part of a generation that lives on one node: ranks first_rank .. first_rank + count - 1.
struct Placed {
  std::string node;
  Rank first_rank;
  int count = 0;
  bool gone = false;  // its processes are, or the node is written off
  friend bool operator==(const Placed&, const Placed&) = default;
};

// One launch of all ranks, from the decision to start it on. Kept for the report.
struct GenerationRecord {
  Generation number;
  Duration waited_from{};  // t at which the job began to wait for it
  Duration decided{};
  RestorePolicy restore;
  std::optional<Duration> opened;
  bool restoring = false;
  std::optional<Duration> restored;
  bool fresh = true;
  perdure::Step restored_step{-1};
  Generation restored_from;
  std::optional<Duration> first_step;
  std::optional<Duration> last_completed;
  perdure::Step completed{-1};
  TimeSpent spent;
  double median_step_seconds = 0;
  std::int64_t samples = 0;
  std::optional<double> loss;
  std::optional<Duration> last_progress;  // set when the generation's end was decided
  std::optional<Duration> judged;         // t of that decision
  std::optional<Duration> ended;          // all processes gone or written off
  friend bool operator==(const GenerationRecord&, const GenerationRecord&) = default;
};

// An unplanned end of a generation.
struct Interruption {
  Generation generation;
  std::optional<Rank> rank;
  std::string node;
  FailureClass failure_class = FailureClass::kInfrastructure;
  std::string reason;
  std::optional<int> exit_code;
  std::optional<int> signal;
  std::string error_line;
  Duration last_progress{};
  Duration judged{};
  perdure::Step completed{-1};
  friend bool operator==(const Interruption&, const Interruption&) = default;
};

struct Commit {
  perdure::Step step;
  Generation generation;
  Duration t{};
  std::int64_t bytes = 0;
  double seconds = 0;
  friend bool operator==(const Commit&, const Commit&) = default;
};

// A rank's report of a failed collective.
struct Accusation {
  Rank by;
  CommFailure::Class failure_class = CommFailure::Class::kLocalError;
  std::vector<Rank> suspects;
  std::string message;
  friend bool operator==(const Accusation&, const Accusation&) = default;
};

// The first cause of a generation's end, as far as it is known.
struct Cause {
  std::optional<Rank> rank;
  std::string node;
  FailureClass failure_class = FailureClass::kInfrastructure;
  std::optional<int> exit_code;
  std::optional<int> signal;
  std::string error_line;
  std::string head;  // "rank 3 on b was killed (signal 9)"
  bool node_lost = false;
  bool blames_node = true;
  bool instant = false;
  Duration last_progress{};
  friend bool operator==(const Cause&, const Cause&) = default;
};

// What happens once the old processes are gone.
struct Afterwards {
  bool finish = false;
  int exit_code = 0;
  std::string sentence;
  std::string next_command;
  Duration not_before{};  // of the next launch
  friend bool operator==(const Afterwards&, const Afterwards&) = default;
};

struct Drill {
  std::int64_t id = 0;
  int target = 0;  // ChaosRequest::Target
  Rank rank;
  std::string node;
  int signal = 9;
  std::optional<perdure::Step> at_step;
  bool done = false;
  friend bool operator==(const Drill&, const Drill&) = default;
};

struct Durable {
  std::int64_t term = 0;
  std::int64_t wall_epoch_ms = 0;
  Duration begun{};  // of the present run of the job
  Duration term_started{};
  JobPhase phase = JobPhase::kWaiting;
  bool closed = false;

  std::map<std::string, Node> nodes;
  Generation highest_generation;  // known to journal or root
  std::optional<Duration> enough_nodes_since;
  std::vector<std::string> assigned;  // node of each group rank, kept from generation to generation

  // The current generation; meaningful when phase is not kWaiting (and in kDone for the report).
  Generation generation;
  std::vector<Placed> placed;
  std::map<Rank, RankEnd> ends;
  std::string store_address;
  std::map<Rank, Code> left;  // RankLeaving, before the exit
  std::map<Rank, bool> left_durable;

  // Judging.
  std::optional<Cause> suspected_cause;
  bool suspected_cause_is_consequence = false;
  std::vector<Accusation> accusations;
  std::set<std::string> evidence_awaited;  // nodes
  bool verdict_wanted = false;
  std::string stalled;  // why evidence was asked for
  std::optional<Duration> judging_since;

  Afterwards afterwards;
  std::optional<StopRequested> stop;
  std::map<Timer, Duration> timers;

  // Budgets.
  int restarts_used = 0;  // since the last refill
  int restarts_total = 0;
  int preemptions = 0;
  int user_failures = 0;
  int infrastructure_failures = 0;
  int no_progress_restarts = 0;
  std::set<std::string> lost_in_streak;  // nodes lost since the last newer checkpoint
  std::optional<Duration> last_interruption;
  std::string instant_signature;  // of the last generation's instant failure
  int instant_repeats = 0;
  std::set<std::string> instant_nodes;
  std::map<std::string, std::set<std::string>> instant_witnesses;  // of the current generation

  // Checkpoints.
  std::deque<Commit> commits;        // on the lineage, newest last
  perdure::Step best_committed{-1};  // ever
  int waiting_for = 0;               // nodes; already said
  int saves_failed_in_a_row = 0;
  std::map<std::string, int> load_crashes;
  std::vector<std::string> avoid;

  std::vector<Drill> drills;
  std::vector<GenerationRecord> generations;
  std::vector<Interruption> interruptions;

  // The first failing rank of the last interruption, and the end of the job.
  std::optional<Cause> reason;
  int exit_code = 0;
  std::string last_sentence;
  std::optional<Duration> finished;
  friend bool operator==(const Durable&, const Durable&) = default;
};

// "Awake time" is t less the supervisor's own pauses: what it slept through, nobody is blamed for.
struct RankSeen {
  std::optional<RankReport> report;
  std::optional<RankObservation> observation;
  Duration spoke{};     // awake time at which the rank itself was last heard, by its agent's word
  Duration progress{};  // awake time of its last step or change of phase
  Duration progress_t{};
  std::int64_t steps_done = 0;  // in this generation, as far as seen
  bool suspected = false;
};

struct NodeSeen {
  bool connected = false;
  Duration heard{};  // awake time
};

struct Seen {
  bool begun = false;
  Duration t{};
  Duration paused{};
  std::map<std::string, NodeSeen> nodes;

  // Of the current generation:
  Generation generation;
  Duration since{};  // awake time at which it was first seen
  std::vector<RankSeen> ranks;
  std::deque<double> step_seconds;  // the last few
  std::optional<Duration> opened;
  std::optional<Duration> first_step;
  std::optional<Duration> last_completed;
  Duration last_completed_awake{};
  perdure::Step completed{-1};
  bool restoring = false;
  TimeSpent spent_sum;  // over the ranks that reported
  std::int64_t reporting = 0;
  std::int64_t samples = 0;
  std::optional<double> loss;
  TimeSpent spent;  // mean, as of the last completed step
  Progress noted;   // the last Progress raised
  Duration noted_at{};

  Duration awake() const { return t - paused; }
};

struct State {
  Durable durable;
  Seen seen;
};

// The records of the current generation; null before the first.
const GenerationRecord* CurrentRecord(const Durable& durable);
// The node that holds a rank of the current generation; empty when none does.
std::string NodeOf(const Durable& durable, Rank rank);
// What makes two instant failures "the same".
std::string SignatureOf(const Cause& cause);
// "step-00000040.g1".
std::string CheckpointName(perdure::Step step, Generation generation);

}  // namespace perdure::core
