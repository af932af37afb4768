// A real process under test: started with its own environment, its output kept, never left behind.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "perdure/clock.h"

namespace perdure {

class Child {
 public:
  // Runs `argv` with exactly `environment` on top of PATH; stdout and stderr go to `output_file`.
  Child(const std::vector<std::string>& argv, const std::map<std::string, std::string>& environment,
        std::string output_file);
  ~Child();  // SIGKILL if it still runs
  Child(Child&& other) noexcept;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;

  // The exit code, or 128 + the signal that ended it; nothing when it still runs at the deadline.
  std::optional<int> Wait(Deadline deadline);

  std::string Output() const;
  // Waits until the output contains `text`.
  bool WaitForOutput(const std::string& text, Deadline deadline) const;

 private:
  pid_t pid_ = -1;
  std::optional<int> ended_;
  std::string output_file_;
};

}  // namespace perdure
