// Agents and ranks in memory: three nodes that obey the supervisor, ranks that train in lockstep,
// and a life of their own: they outlive any supervisor, as real ones do. No sockets, no processes.
//
// Threads: Send comes from the supervisor's loop, Pump from the test's thread; both under a lock.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "control/agent_link.h"

namespace perdure {

class FakeAgents final : public AgentPort {
 public:
  struct Plan {
    std::vector<std::string> nodes = {"a", "b", "c"};
    int steps = 8;         // then all ranks leave with success
    int commit_every = 3;  // by rank 0
    // In generation 1, when this step was completed, this rank is killed.
    int kill_at_step = 4;
    std::int64_t kill_rank = 3;
    int hold_at_step = -5;  // generation 1 goes no further than this
  };

  explicit FakeAgents(Plan plan);

  // --- AgentPort, for the supervisor of the moment
  Status Open(Handler handler) override;
  bool Send(const std::string& node, const SupervisorCommand& command) override;
  void Close(Deadline deadline) override;

  // One turn of the world: agents dial, obey, report; ranks make a step; events are said.
  void Pump();

  // Until the supervisor has sent something, or the deadline.
  void AwaitCommand(Deadline deadline);

  // How often each rank of each generation was really started.
  std::map<std::pair<std::int64_t, std::int64_t>, int> starts();
  bool AnythingRunning();
  // Stops that reached running ranks of a generation.
  std::vector<std::int64_t> stopped_generations();

 private:
  struct Process {
    Generation generation;
    int completed = -1;
    bool restored = false;
  };
  struct Agent {
    std::string incarnation;
    bool connected = false;
    std::deque<SupervisorCommand> commands;
    std::map<Rank, Process> processes;
    std::set<std::pair<std::int64_t, std::int64_t>> known;  // (generation, rank), ended ones too
    std::uint64_t said = 0;
    std::deque<NumberedEvent> unacknowledged;
    std::size_t sent = 0;  // of unacknowledged, on this connection
    bool shut_down = false;
  };
  struct Outgoing {
    std::string node;
    AgentMessage message;
  };

  void Say(Agent& agent, AgentEvent event) PERDURE_REQUIRES(mutex_);
  void Obey(const std::string& name, Agent& agent, const SupervisorCommand& command)
      PERDURE_REQUIRES(mutex_);
  void EndRank(Agent& agent, Rank rank, std::optional<int> code, std::optional<int> signal)
      PERDURE_REQUIRES(mutex_);
  void Train() PERDURE_REQUIRES(mutex_);
  bool AllAcknowledged() const PERDURE_REQUIRES(mutex_);
  NodeReport ReportOf(const std::string& name, const Agent& agent) const PERDURE_REQUIRES(mutex_);

  const Plan plan_;
  Mutex mutex_;
  CondVar commanded_;
  bool command_waits_ PERDURE_GUARDED_BY(mutex_) = false;
  Handler handler_ PERDURE_GUARDED_BY(mutex_);
  bool open_ PERDURE_GUARDED_BY(mutex_) = false;
  std::map<std::string, Agent> agents_ PERDURE_GUARDED_BY(mutex_);
  // World size by generation.
  std::map<std::int64_t, int> world_ PERDURE_GUARDED_BY(mutex_);
  int committed_ PERDURE_GUARDED_BY(mutex_) = -1;
  std::int64_t committed_by_ PERDURE_GUARDED_BY(mutex_) = 0;
  bool killed_ PERDURE_GUARDED_BY(mutex_) = false;
  std::map<std::pair<std::int64_t, std::int64_t>, int> starts_ PERDURE_GUARDED_BY(mutex_);
  std::vector<std::int64_t> stopped_ PERDURE_GUARDED_BY(mutex_);
};

}  // namespace perdure
