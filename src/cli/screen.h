// The foreground of `perdure run`: lines, and under them one progress line that is drawn in place
// on a terminal and printed now and then where stdout is none.
#pragma once

#include <string>
#include <string_view>

#include "perdure/clock.h"

namespace perdure::cli {

// "step 57 | loss 2.3312 | 8.1 step/s | ETTR 93.4 % | checkpoint 40, 12 s ago | generation 2", from
// the JSON of a status. Empty when there is no generation yet. Pure.
std::string ProgressLine(const std::string& status_json);

class Screen {
 public:
  // `terminal`: stdout is one, `columns` wide.
  Screen(bool terminal, int columns) : terminal_(terminal), columns_(columns) {}
  ~Screen() { Clear(); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void Line(std::string_view line);
  void Progress(const std::string& line, MonotonicTime now);

 private:
  void Clear();
  void Draw();

  const bool terminal_;
  const int columns_;
  std::string progress_;
  bool drawn_ = false;
  MonotonicTime next_plain_{};
};

}  // namespace perdure::cli
