// One line on stderr that says how far long work has come; only where stderr is a terminal.
#pragma once

#include <cstdint>
#include <string>

#include "perdure/clock.h"

namespace perdure::cli {

// "verify  [=====>    ]  52 %  1.3 GiB of 2.5 GiB", `columns` wide or less. Pure.
std::string ProgressBarLine(const std::string& doing, std::int64_t done, std::int64_t total,
                            int columns);

std::string HumanBytes(std::int64_t bytes);

class ProgressBar {
 public:
  // On stderr; silent where it is no terminal.
  explicit ProgressBar(std::string doing);
  // Leaves an empty line behind, for what is printed next.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Draws at most ten times a second.
  void Show(std::int64_t done, std::int64_t total);

 private:
  const std::string doing_;
  const bool terminal_;
  int columns_ = 80;
  bool drawn_ = false;
  MonotonicTime next_{};
};

}  // namespace perdure::cli
