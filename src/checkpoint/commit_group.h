// What the checkpoint room needs of the other ranks of its generation: a place to post facts and to
// wait for them. Not collectives: a save can neither disturb training nor be disturbed by it.
// Runtime implements it over the control store; tests in memory.
#pragma once

#include <string>
#include <string_view>

#include "perdure/clock.h"
#include "perdure/ids.h"
#include "perdure/status.h"

namespace perdure {

// Thread-safe. Keys are paths that begin with "/ckpt/".
class CommitGroup {
 public:
  virtual ~CommitGroup() = default;
  virtual Rank rank() const = 0;
  virtual int size() const = 0;
  virtual Generation generation() const = 0;
  virtual Status Publish(std::string_view key, std::string_view value, Deadline deadline) = 0;
  // Waits until somebody has published the key. kAborted at once when the group is being taken
  // down.
  virtual Result<std::string> Await(std::string_view key, Deadline deadline) = 0;
  // Removes every key that begins with `prefix`. Only for what nobody will wait for again.
  virtual Status Forget(std::string_view prefix, Deadline deadline) = 0;
};

}  // namespace perdure
