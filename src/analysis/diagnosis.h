// Who is missing? Compares all ranks of a generation that stands still and names the one that the
// others wait for. Pure.
//
// In this order, the first that holds for a rank decides:
//   1 its process is gone
//   2 its process is stopped (SIGSTOP, a debugger)
//   3 it is behind: it has begun an earlier step, or has not joined an operation that others have
//   4 it is busy elsewhere while the others communicate
//   5 ranks that failed name it as their suspect
//   6 it alone has overstayed its phase
// A rank that waits for another one in a collective is never blamed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "control/messages.h"
#include "perdure/health.h"
#include "perdure/ids.h"

namespace perdure {

struct RankFacts {
  Rank rank;
  std::string node;
  bool reported = false;  // false: it never said anything
  Phase phase = Phase::kInit;
  std::string phase_name;
  Step step{-1};
  Step completed{-1};
  ProcessState process = ProcessState::kRunning;
  double silent_seconds = 0;
  double standing_seconds = 0;  // since its last progress
  double deadline_seconds = 0;  // of the phase it is in
  std::vector<CommProgress> communicators;

  bool overdue() const { return standing_seconds > deadline_seconds; }
};

// What a rank whose collective failed says about others.
struct Suspicion {
  Rank by;
  std::vector<Rank> suspects;
  std::string message;
};

struct Diagnosis {
  std::optional<Rank> culprit;
  std::string node;      // of the culprit
  std::string sentence;  // always: one sentence, also when nobody stands out
};

Diagnosis Diagnose(const std::vector<RankFacts>& ranks, const std::vector<Suspicion>& suspicions);

// "rank 3", "ranks 0, 1 and 3", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more".
std::string RankList(const std::vector<Rank>& ranks);

}  // namespace perdure
