// SIGTERM, and being a forked child. The signal handler only writes to a pipe; a thread reads it
// and calls back in a normal context.
#pragma once

#include <functional>
#include <memory>

#include "base/posix.h"
#include "base/thread.h"

namespace perdure {

// While it lives, SIGTERM calls `on_sigterm` (on a thread of its own) instead of ending the
// process. The handler that was there before comes back at the end. At most one at a time in a
// process.
class SigtermWatch {
 public:
  static Result<std::unique_ptr<SigtermWatch>> Install(std::function<void()> on_sigterm);
  ~SigtermWatch();

 private:
  SigtermWatch(UniqueFd read_end, UniqueFd write_end, std::function<void()> on_sigterm);

  UniqueFd read_end_;
  UniqueFd write_end_;
  Thread thread_;
};

// True in a process that was forked (without exec) from the one that first asked. The library is
// inert there: its threads did not come along, and its sockets belong to the parent.
bool InForkedChild();

}  // namespace perdure
