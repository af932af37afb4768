#include "health/reporter.h"

#include <utility>

namespace perdure {

Reporter::Reporter(SupervisorLink& link, std::function<RankReport()> snapshot)
    : link_(link), snapshot_(std::move(snapshot)), thread_("perdure-report", [this] { Loop(); }) {}

Reporter::~Reporter() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    changed_.NotifyOne();
  }
  thread_.Join();
}

void Reporter::Nudge() {
  MutexLock lock(mutex_);
  nudged_ = true;
  changed_.NotifyOne();
}

void Reporter::Loop() {
  for (bool last = false;;) {
    // A report that does not fit the queue is no loss: the next one replaces it.
    (void)link_.Send(snapshot_());
    if (last) return;

    const Deadline earliest = Deadline::After(kReportIntervalLeast);
    const Deadline latest = Deadline::After(kReportInterval);
    MutexLock lock(mutex_);
    while (!closing_ && changed_.WaitUntil(mutex_, earliest)) {
    }
    while (!closing_ && !nudged_ && changed_.WaitUntil(mutex_, latest)) {
    }
    nudged_ = false;
    // One more round after closing: the snapshot before it may miss what happened last.
    last = closing_;
  }
}

}  // namespace perdure
