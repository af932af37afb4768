// One rank as a process: started through the stub, watched by a pidfd, its end put into words.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/posix.h"
#include "control/agent_link.h"
#include "supervisor/agent/inbox.h"
#include "supervisor/agent/proc.h"

namespace perdure::agent {

struct RankProcess {
  RankKey key;
  ProcessStat root;  // as it was when it was started
  UniqueFd pidfd;    // readable when the process has ended
  UniqueFd status;   // what the stub says when it cannot start the program
  std::string log_path;
  MonotonicTime started;
  std::int64_t worker_pid =
      0;  // the process that said hello; 0: none yet (it may sit under a wrapper)
  std::optional<RankLeaving> leaving;
  std::optional<int> wait_status;  // once the process has ended
  MonotonicTime ended;
  bool told = false;  // RankExited or RankStartFailed is on its way

  Generation generation() const { return key.first; }
  Rank rank() const { return key.second; }
  bool running() const { return !wait_status.has_value(); }
  // What signals of a drill and the view from /proc are about.
  pid_t worker() const { return worker_pid > 0 ? static_cast<pid_t>(worker_pid) : root.pid; }
};

// What the ranks of this node share.
struct RankSurroundings {
  std::string job;
  std::string node;
  std::string state_directory;
  std::string rank_address;  // PERDURE_AGENT
};

// The variables that a rank gets on top of the agent's own. Pure.
std::map<std::string, std::string> RankEnvironment(const RankSurroundings& around,
                                                   const StartRanks& start, const StartRank& rank,
                                                   const std::string& token);

// Starts the process; must be called on the agent's main thread, whose end is the rank's end.
Result<RankProcess> StartRankProcess(const RankSurroundings& around, const StartRanks& start,
                                     const StartRank& rank, const std::string& token,
                                     MonotonicTime now);

// How the process ended, or could not begin; after wait_status is set.
AgentEvent DescribeEnd(const RankProcess& process);

}  // namespace perdure::agent
