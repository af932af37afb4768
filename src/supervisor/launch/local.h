// The processes of a job on one machine: the supervisor and one agent per simulated node, all
// children of the process that owns this. An agent that ends stays lost, as a machine would: its
// spare takes over. Whatever its ranks had started is found by its marker and ended.
//
// Not thread-safe: everything from the thread that starts the processes, whose end is theirs.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "perdure/clock.h"
#include "perdure/status.h"

namespace perdure::launch {

// "a", "b", … "z", "n26", "n27", …
std::vector<std::string> NodeNames(int count);

class LocalProcesses {
 public:
  // `state_directory` is absolute. Orphans of what is started become this process's children
  // (PR_SET_CHILD_SUBREAPER).
  static Result<LocalProcesses> Create(std::string state_directory);

  // Ends what an earlier run of this job left behind, for example after a power switch of its
  // terminal.
  Status EndLeftovers(Deadline deadline) const;

  // `words` follow "perdure supervisor"; its output is appended to STATE/logs/supervisor.log.
  Status StartSupervisor(const std::vector<std::string>& words);
  // Output in STATE/logs/agent-NODE.log.
  Status StartAgent(const std::string& node, int capacity);

  struct Ended {
    std::string name;  // "supervisor", or the node
    int wait_status = 0;
  };
  // Takes children that have ended, orphans included; the ones that were started here are returned.
  std::vector<Ended> Reap();

  std::optional<pid_t> supervisor() const;
  bool any_agent() const;
  bool empty() const { return running_.empty(); }

  void SignalSupervisor(int signal) const;
  void SignalAgents(int signal) const;

  // Ends everything: agents get SIGTERM and `grace` to end their ranks, then all get SIGKILL, and
  // what is marked as this job's is killed too. Returns pids that do not go.
  std::vector<pid_t> EndAll(Duration grace);

 private:
  explicit LocalProcesses(std::string state_directory) : state_(std::move(state_directory)) {}
  Status Start(const std::string& name, const std::string& log, std::vector<std::string> words);

  std::string state_;
  std::map<pid_t, std::string> running_;
};

}  // namespace perdure::launch
