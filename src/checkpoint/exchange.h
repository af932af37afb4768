// Facts of any size over the commit group, and waits that end when the engine does. Threads: any.
#pragma once

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "checkpoint/commit_group.h"
#include "perdure/clock.h"
#include "perdure/ids.h"
#include "perdure/status.h"

namespace perdure {

// What ranks tell each other is JSON of one line, unversioned: only ranks of one build meet.
// Bytes that are not UTF-8 are replaced.
std::string OneLine(const nlohmann::json& message);
// {"error":…,"code":…}, for a status that is not OK.
std::string FormatError(const Status& error);
// The error in a message, if it is one; else OK.
Status ErrorIn(const nlohmann::json& message);

class Exchange {
 public:
  // A larger text travels in several values.
  static constexpr std::size_t kValueBytesMax = std::size_t{1} << 20;

  // Both outlive this.
  Exchange(CommitGroup& group, const Clock& clock) : group_(group), clock_(clock) {}

  Rank rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  Generation generation() const { return group_.generation(); }
  bool is_rank_0() const { return group_.rank() == Rank(0); }
  const Clock& clock() const { return clock_; }

  Status Put(const std::string& key, std::string_view text, Deadline deadline);
  // kDeadlineExceeded when nobody has put it in time; kAborted after Stop.
  Result<std::string> Get(const std::string& key, Deadline deadline);
  // The same, not waiting beyond a short slice: for loops that have other things to look at.
  // kDeadlineExceeded: not yet.
  Result<std::string> Glance(const std::string& key);

  // Removes what begins with `prefix` and nobody will ask for again. A failure costs memory of the
  // store and is logged.
  void Forget(const std::string& prefix, Deadline deadline);

  // Nothing else to do for so long. Ends early after Stop.
  void Pause(Duration duration);

  // Ends every wait, now and later.
  void Stop();
  bool stopped() const { return stopped_.load(); }

 private:
  Result<std::string> Whole(const std::string& key, std::string first, Deadline deadline);

  CommitGroup& group_;
  const Clock& clock_;
  std::atomic<bool> stopped_{false};
  Mutex mutex_;
  CondVar stop_changed_;
};

}  // namespace perdure
