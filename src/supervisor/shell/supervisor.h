// The supervisor: the decision core with a clock, a journal and agents.
//
// One loop thread (the caller of Run) owns the state. Everything that happens reaches it through
// one bounded queue; for each event it
//   1 steps the core (pure),
//   2 writes event and decision to the journal, durably (SUP-2),
//   3 acknowledges the event to its agent,
//   4 performs the effects.
// A supervisor that is killed between any two of these and started again on the same state
// directory goes on where it was and disturbs no rank (SUP-5).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "control/agent_link.h"
#include "control/job_control.h"
#include "perdure/clock.h"
#include "perdure/status.h"
#include "supervisor/job/job_file.h"

namespace perdure {

struct SupervisorOptions {
  JobFile job;
  std::string state_directory;  // created when absent
  std::string token;            // what agents must show; empty: any
  // Called by the loop for each journalled line that a person should see, in order. May be empty.
  std::function<void(const std::string& line)> on_line;

  // Fault drills of tests: asked at each of these moments; false makes Run return kAborted there
  // and then, with nothing more written, sent or said, as a kill would. Empty: always true.
  enum class Moment { kBeforeJournal, kAfterJournal, kAfterEffect };
  std::function<bool(Moment)> survives;
};

class Supervisor {
 public:
  // Opens the journal and replays it. `port` and `clock` outlive the supervisor.
  // kFailedPrecondition: another supervisor holds the state directory.
  static Result<std::unique_ptr<Supervisor>> Create(SupervisorOptions options, AgentPort& port,
                                                    const Clock& clock);
  virtual ~Supervisor() = default;

  // Opens the port and leads the job until it ends; the exit code of the contracts (0, 1, 93,
  // 128 + n). An error: the supervisor itself cannot go on (its journal cannot be written); the
  // ranks are left alone.
  virtual Result<int> Run() = 0;

  // SIGTERM or SIGINT arrived: one coordinated checkpoint, then the end. The second time: at once.
  // Any thread; not from a signal handler.
  virtual void OnSignal(int signal) = 0;

  // Valid for the supervisor's lifetime; thread-safe; answers from Create on, until after Run.
  virtual JobControl& control() = 0;
};

}  // namespace perdure
