// What a person (through the command line) asks of a running job. The supervisor's shell answers;
// wire carries. Answers are JSON texts: the command line prints or formats them and nobody else
// reads them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "control/messages.h"

namespace perdure {

struct ChaosRequest {
  enum class Target : std::uint8_t { kRank, kAgent, kSupervisor };
  Target target = Target::kRank;
  Rank rank;                    // kRank
  std::string node;             // kAgent
  int signal = 9;               // SIGKILL or SIGSTOP
  std::optional<Step> at_step;  // when the job first reports this step as completed; none: now
};

class JobControl {
 public:
  virtual ~JobControl() = default;
  virtual Result<std::string> StatusJson() = 0;
  // Events numbered from `first` on, oldest first, one JSON object each; calls `on_event` until it
  // returns false. With `follow`, waits for new ones until the end of the job (OK) or the deadline
  // (kDeadlineExceeded).
  virtual Status Events(std::int64_t first, bool follow, Deadline deadline,
                        const std::function<bool(const std::string& json)>& on_event) = 0;
  // One coordinated checkpoint, then an orderly end.
  virtual Status Stop(const std::string& reason) = 0;
  virtual Status Chaos(const ChaosRequest& request) = 0;
};

}  // namespace perdure
