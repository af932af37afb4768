// The agent of one node: starts ranks, watches them, ends them, and carries words between them and
// the supervisor.
//
// One main thread (the caller of Run) does everything; the ports' threads only fill its inbox. It
// sleeps in poll over the inbox, the ranks' pidfds and the signal descriptor, and each time it
// wakes it:
//  1 takes what arrived,
//  2 reaps children (it is a child subreaper: orphans of ranks become its children),
//  3 tells of ranks that ended, after their last words have arrived,
//  4 advances the generations that are being ended,
//  5 looks at its lease,
//  6 reports once a second, and sends events that were not sent.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "control/agent_link.h"
#include "perdure/clock.h"
#include "supervisor/agent/inbox.h"
#include "supervisor/agent/outbox.h"
#include "supervisor/agent/process_tree.h"
#include "supervisor/agent/rank_process.h"
#include "supervisor/agent/stop_sequence.h"

namespace perdure::agent {

inline constexpr Duration kAgentReportInterval = std::chrono::seconds(1);
// A rank that ended is told of when its stream has ended too, or after this.
inline constexpr Duration kLastWords = std::chrono::milliseconds(200);
// When it leaves: so long for the supervisor to acknowledge the last events.
inline constexpr Duration kFarewell = std::chrono::seconds(3);

struct AgentOptions {
  std::string job;
  std::string node;
  std::map<std::string, std::string> labels;
  int capacity = 1;
  std::string token;            // the job's
  std::string state_directory;  // absolute; logs go there
  std::string rank_address;     // of the rank port
  // A signalfd for the signals that end the agent, which the caller has blocked; -1: none.
  int signal_fd = -1;
};

class Agent {
 public:
  // The ports outlive the agent. Processes that an earlier agent of this node left behind are
  // ended.
  static Result<std::unique_ptr<Agent>> Create(AgentOptions options, SupervisorPort& supervisor,
                                               RankPort& ranks, const Clock& clock);

  // Until Shutdown, a refusal by the supervisor, or a signal; then every process it started is
  // gone, but for those that cannot be killed. 0: shut down; 1: refused; 128 + n: signal n.
  int Run();

 private:
  struct GenerationHere {
    StartRanks start;
    std::optional<StopSequence> stop;
    bool abort = true;
    bool ended = false;
    std::vector<std::int64_t> unkillable;
    std::optional<StoreAddress> store_address;  // for ranks that connect later
    std::vector<PeerDead> dead_peers;
  };

  Agent(AgentOptions options, SupervisorPort& supervisor, RankPort& ranks, const Clock& clock,
        std::unique_ptr<Inbox> inbox);

  Status OpenPorts();
  void Wait();
  void TakeInbox();
  void TakeSignals();
  void Reap();
  void TellOfEnds(MonotonicTime now);
  void AdvanceStops(MonotonicTime now);
  void EndGeneration(Generation generation, GenerationHere& here);
  void CheckLease(MonotonicTime now);
  void Report(MonotonicTime now);

  void On(const SupervisorConnected& item);
  void On(const SupervisorDisconnected& item);
  void On(const SupervisorRefused& item);
  void On(const SupervisorCommand& item);
  void On(const RankConnected& item);
  void On(const RankSaid& item);
  void On(const RankDisconnected& item);
  void Do(const StartRanks& command);
  void Do(const StopGeneration& command);
  void Do(const FenceGeneration& command);
  void Do(const CollectEvidence& command);
  void Do(const SignalRank& command);
  void Do(const ToRanks& command);
  void Do(const Acknowledge& command);
  void Do(const Shutdown& command);

  // Why ranks of this generation cannot be started here; empty when they can.
  std::string ObstacleTo(Generation generation) const;
  void BeginStop(Generation generation, GenerationHere& here, bool abort, const std::string& reason,
                 Duration grace);
  void StopAll(const std::string& reason);
  void TellRanks(Generation generation, const RankCommand& command);
  void SignalTree(Generation generation, bool abort);
  void NoteRunning();
  void LookAround();
  bool Stopping() const;
  bool Finished(MonotonicTime now) const;

  const AgentOptions options_;
  const RankSurroundings around_;
  const std::string incarnation_;
  SupervisorPort& supervisor_;
  RankPort& rank_port_;
  const Clock& clock_;
  const std::unique_ptr<Inbox> inbox_;

  Outbox outbox_;
  ProcessTree tree_;
  std::map<Generation, GenerationHere> generations_;
  std::map<RankKey, RankProcess> ranks_;
  std::map<RankKey, std::pair<Step, Phase>> progress_seen_;
  Generation fenced_up_to_;

  bool connected_ = false;
  Duration lease_ = std::chrono::seconds(600);
  MonotonicTime supervisor_seen_;
  MonotonicTime progress_made_;
  MonotonicTime next_report_;
  MonotonicTime last_turn_;
  std::optional<int> exit_code_;              // set: leaving
  std::optional<MonotonicTime> quiet_since_;  // leaving, and nothing is left to end
};

}  // namespace perdure::agent
