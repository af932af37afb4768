// The heartbeat: a helper thread that sends what this process is doing every 500 ms, and at once
// (at most ten times a second) when step or phase changes. The thread proves that the process
// lives; step and phase prove that it gets on. It never waits for the training thread, nor the
// training thread for it.
#pragma once

#include <functional>

#include "base/mutex.h"
#include "base/thread.h"
#include "control/link.h"
#include "control/messages.h"

namespace perdure {

inline constexpr Duration kReportInterval = std::chrono::milliseconds(500);
inline constexpr Duration kReportIntervalLeast = std::chrono::milliseconds(100);

class Reporter {
 public:
  // `snapshot` makes a report; called on the reporter's thread. `link` outlives the reporter.
  Reporter(SupervisorLink& link, std::function<RankReport()> snapshot);
  ~Reporter();  // sends a last report

  // Something changed: report soon. Any thread, never blocks.
  void Nudge();

 private:
  void Loop();

  SupervisorLink& link_;
  const std::function<RankReport()> snapshot_;

  Mutex mutex_;
  CondVar changed_;
  bool nudged_ PERDURE_GUARDED_BY(mutex_) = false;
  bool closing_ PERDURE_GUARDED_BY(mutex_) = false;

  Thread thread_;  // last: it uses everything above
};

}  // namespace perdure
