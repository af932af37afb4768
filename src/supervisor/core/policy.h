// What the decision core is told once: the shape of the job, how long to wait for what, how often
// to try. Values only.
//
// The patience obeys
//   3 x rank report interval < suspected <= node silent < lease
//   collective (all joined) + evidence <= step
// and is checked by CheckPolicy; supervisor/job derives it from the job file so that it holds.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "control/messages.h"
#include "perdure/clock.h"
#include "perdure/status.h"

namespace perdure::core {

struct Policy {
  std::string job;
  std::string job_file;  // for the next command to type
  int nodes = 1;
  int spares = 0;
  int ranks_per_node = 1;
  bool checkpoints = true;  // a checkpoint directory is set
  ResumeMode resume = ResumeMode::kAuto;

  // Handed on to the agents as it is; nothing is decided by it.
  std::vector<std::string> command;
  std::map<std::string, std::string> env;
  std::string working_directory;
  CheckpointSettings checkpoint_settings;

  // Patience.
  Duration rank_report_interval = std::chrono::milliseconds(500);
  Duration agent_report_interval = std::chrono::seconds(1);
  Duration suspected = std::chrono::seconds(10);    // rank silent, process alive
  Duration node_silent = std::chrono::seconds(10);  // then the node is lost
  Duration lease = std::chrono::seconds(600);
  Duration collective = std::chrono::seconds(120);  // all have joined
  Duration init = std::chrono::seconds(900);
  Duration restore = std::chrono::seconds(900);
  Duration checkpoint = std::chrono::seconds(300);
  Duration other_phase = std::chrono::seconds(300);
  // A step: `step_given`, else max(step_factor x median, step_floor), at most step_ceiling. The
  // first `warm_steps` steps of a generation have the init deadline.
  std::optional<Duration> step_given;
  double step_factor = 5;
  Duration step_floor = std::chrono::seconds(180);
  Duration step_ceiling = std::chrono::seconds(300);
  int warm_steps = 5;
  Duration evidence = std::chrono::seconds(10);
  Duration stop_grace = std::chrono::seconds(15);
  Duration stop_margin = std::chrono::seconds(15);  // on top of the grace, for the agent's answer
  Duration preemption_grace = std::chrono::seconds(120);
  Duration agents_awaited = std::chrono::seconds(30);  // by a supervisor that is back
  Duration inquest = std::chrono::seconds(1);  // wait for the first cause after a consequence
  Duration spares_awaited = std::chrono::seconds(2);  // once enough nodes are in
  Duration pause_noticed = std::chrono::seconds(2);   // a longer gap was the supervisor's own sleep

  // Budgets.
  int max_auto_restart = 50;
  Duration refill_after = std::chrono::seconds(86400);
  int max_no_progress_restarts = 3;
  Duration backoff_first = std::chrono::seconds(1);  // from the second restart without progress on
  Duration backoff_most = std::chrono::seconds(60);
  Duration instant = std::chrono::seconds(30);  // a rank that lived shorter, without a step

  // Isolation.
  bool auto_isolate_bad_node = true;
  int isolate_after = 2;  // blames within blame_window
  Duration blame_window = std::chrono::seconds(3600);
  Duration isolation_first = std::chrono::seconds(600);  // doubles with each isolation
  Duration isolation_most = std::chrono::seconds(86400);
  double isolated_share_most = 0.34;  // of the nodes known, at least one

  int world_size() const { return nodes * ranks_per_node; }
  friend bool operator==(const Policy&, const Policy&) = default;
};

// The inequalities above, each duration positive; the message names the two that contradict.
Status CheckPolicy(const Policy& policy);

}  // namespace perdure::core
