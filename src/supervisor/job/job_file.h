// The job file: what a person writes to say what is to be trained, where, and how patient to be.
//
// LoadJobFile reads and judges the text alone. CheckJobFile then touches the world: does the
// command exist, can the checkpoint directory be written. Both answer with one line that names
// file, line, key, what was found, what is allowed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control/messages.h"
#include "perdure/status.h"
#include "supervisor/core/policy.h"

namespace perdure {

struct JobFile {
  struct Model {
    std::string params;                                 // "0.8M"; for people
    std::string dtype;                                  // "fp32"; for people
    std::vector<std::pair<std::string, int>> parallel;  // axes in the order of the file
  };
  struct Launch {
    std::string launcher = "local";
    int nodes = 1;
    int spares = 0;
    int ranks_per_node = 1;
    std::map<std::string, std::string> env;
  };
  struct Checkpoint {
    std::string directory;                       // absolute
    std::optional<std::int64_t> interval_steps;  // none, and not chosen either: only on request
    bool interval_auto = false;                  // `interval: auto`, the cheapest one
    std::optional<double> max_lost_minutes;
    std::string init_from;  // absolute
    std::map<std::string, std::string> init_names;
    bool async_save = true;
    int keep_last_n = 3;
    std::int64_t keep_every_steps = 0;  // 0: none is kept for its step
    ResumeMode resume = ResumeMode::kAuto;
    int stop_after = 3;                  // failed saves in a row
    std::int64_t staging_bytes_max = 0;  // 0: as many as a rank's copies take
    SaveWhenBusy when_busy = SaveWhenBusy::kWait;
  };
  // What is not set is derived: see PolicyOf.
  struct FaultTolerance {
    std::optional<double> heartbeat_timeout_s;
    std::optional<double> init_s;
    std::optional<double> restore_s;
    std::optional<double> checkpoint_s;
    std::optional<double> step_s;  // none: learned
    std::optional<double> stop_grace_s;
    std::optional<double> preemption_grace_s;
    bool auto_isolate_bad_node = true;
    int max_auto_restart = 50;
    double refill_after_s = 86400;
    int max_no_progress_restarts = 3;
  };

  std::string path;       // absolute
  std::string directory;  // where it lies; relative paths in it mean relative to here
  std::string name;
  std::vector<std::string> command;  // command[0] absolute when it was given as a path
  std::optional<Model> model;
  Launch launch;
  std::optional<Checkpoint> checkpoint;
  FaultTolerance fault_tolerance;
  // Keys that were understood and have no effect yet, one line each, for the log.
  std::vector<std::string> notes;

  int world_size() const { return launch.nodes * launch.ranks_per_node; }
  // <name>.perdure beside the job file.
  std::string DefaultStateDirectory() const;
};

// What the command line says instead of the file.
struct JobOverrides {
  std::optional<int> nodes;
  std::optional<int> spares;
  std::optional<int> ranks_per_node;
};

// kInvalidArgument: the one line. kNotFound: no such file.
Result<JobFile> LoadJobFile(const std::string& path, const JobOverrides& overrides = {});
// The same from text; `path` (absolute) is for messages and relative paths. Pure.
Result<JobFile> ParseJobFile(const std::string& text, const std::string& path,
                             const JobOverrides& overrides = {});

// Touches the world: the command is found and executable, the checkpoint directory can be made and
// written (it is created when absent), the program's PATH comes from the environment given.
Status CheckJobFile(const JobFile& job);

// Everything the core must know, with the patience derived so that its inequalities hold (see
// core/policy.h); an error when what the file sets contradicts itself. Pure.
Result<core::Policy> PolicyOf(const JobFile& job);

}  // namespace perdure
