// What the decision core hears. An event carries the only time there is: `t`, counted from the
// moment the job began, on the supervisor's clock.
//
// Three kinds:
//   heard    what agents and people say; journalled before it is acted upon (SUP-2)
//   derived  what the core itself concludes from watching (a deadline passed, a rank stalled, a
//            verdict); the core raises them, the shell feeds them back, journalled like the first
//   seen     NodeReport, NodeDisconnected, Tick: too many to journal. They change only what is
//            *seen* of the job and never have an effect; what follows from them is derived
// So the durable half of the state is a function of the journal alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "control/agent_link.h"
#include "control/job_control.h"
#include "control/messages.h"

namespace perdure::core {

// User code, infrastructure, preemption: counted separately.
enum class FailureClass : std::uint8_t { kUserCode, kInfrastructure, kPreemption };
std::string_view NameOf(FailureClass failure_class);

// ------------------------------------------------------------------------------------- heard

// A supervisor starts on this journal, for the first time or again.
struct SupervisorStarted {
  std::int64_t term = 1;
  std::int64_t wall_epoch_ms = 0;  // wall clock at t = 0
  Generation highest_claim;        // found on the checkpoint root; 0: none
};

// `AgentHello` (control) is an event as it is.

// Evidence of a node arrived and lies in files.
struct EvidenceStored {
  Generation generation;
  std::vector<std::pair<Rank, std::string>> files;
};

struct StopRequested {
  std::string reason;
  int signal = 0;  // the supervisor received it; 0: a person asked through the command line
  friend bool operator==(const StopRequested&, const StopRequested&) = default;
};

struct ChaosRequested {
  ChaosRequest request;
};

// The checkpoint root was read again.
struct ClaimsSeen {
  Generation highest;
};

// Everything that FinishJob asked for was done: the supervisor leaves.
struct JobClosed {};

// ----------------------------------------------------------------------------------- derived

// What the clock can bring.
enum class Timer : std::uint8_t {
  kLaunch,    // backoff is over, or spares were awaited long enough
  kInquest,   // no better cause turned up
  kEvidence,  // some node sent none
  kStop,      // some node has not ended its processes
  kLeave,     // the coordinated checkpoint takes too long
  kReturn,    // an isolated node has cooled down
};
std::string_view NameOf(Timer timer);

struct Due {
  Timer timer = Timer::kLaunch;
};

struct NodesLost {
  std::vector<std::string> nodes;
  double silent_seconds = 0;
};

// A rank has stopped reporting although its process lives. Nothing follows yet.
struct Suspected {
  Generation generation;
  Rank rank;
  std::string sentence;
};

// A phase took longer than its deadline allows.
struct Stalled {
  Generation generation;
  Rank rank;
  std::string sentence;
};

// Who is to blame, by comparison of all ranks.
struct Verdict {
  Generation generation;
  std::optional<Rank> rank;
  std::string node;  // empty: nobody in particular
  FailureClass failure_class = FailureClass::kInfrastructure;
  std::string sentence;
  Duration last_progress{};  // t
};

// How far the generation is. Raised at the first report, at the first step, once a minute, and
// before anything that may end the generation.
struct Progress {
  Generation generation;
  bool restoring = false;                  // some rank has begun to restore
  perdure::Step completed{-1};             // highest over all ranks
  std::optional<Duration> opened;          // t of the first report
  std::optional<Duration> first_step;      // t when the first step was completed
  std::optional<Duration> last_completed;  // t when `completed` was
  TimeSpent spent;                         // mean over the ranks, as of the last completed step
  double median_step_seconds = 0;
  std::int64_t samples = 0;
  std::optional<double> loss;
  friend bool operator==(const Progress&, const Progress&) = default;
};

// A fault drill has come to its step.
struct DrillDue {
  std::int64_t id = 0;
};

// -------------------------------------------------------------------------------------- seen

struct NodeDisconnected {};  // of Event::node
struct Tick {
  bool note_progress = false;  // raise Progress if anything changed since the last one
};

using EventBody =
    std::variant<SupervisorStarted, AgentHello, RankExited, RankStartFailed, GenerationEnded,
                 EvidenceStored, FromRank<StoreReady>, FromRank<RestoreDone>,
                 FromRank<CheckpointCommitted>, FromRank<CheckpointFailed>,
                 FromRank<CheckpointSkipped>, FromRank<CommFailed>, FromRank<RankLeaving>,
                 StopRequested, ChaosRequested, ClaimsSeen, JobClosed, Due, NodesLost, Suspected,
                 Stalled, Verdict, Progress, DrillDue, NodeReport, NodeDisconnected, Tick>;

struct Event {
  Duration t{};
  std::string node;          // who said it; empty: nobody
  std::string incarnation;   // of that node's agent
  std::uint64_t number = 0;  // of that agent's numbered events; 0: not numbered
  EventBody body;
};

// "rank_exited", "node_report", …
std::string_view KindOf(const Event& event);
// Heard and derived events are; seen ones are not.
bool IsJournalled(const Event& event);
// One line for transcript, log and `perdure events`: "rank_exited g1 rank 3 node b signal 9".
std::string Describe(const Event& event);

}  // namespace perdure::core
