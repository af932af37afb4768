// Who takes part in a communicator, and where this process stands among them.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "perdure/ids.h"

namespace perdure {

struct Group {
  std::string name;           // for people
  std::string id;             // unique in the generation, the same on all members
  int rank = 0;               // of this process, in the group
  std::vector<Rank> members;  // ranks of the job, by rank in the group
  Generation generation{1};

  int size() const { return static_cast<int>(members.size()); }
  // What verdicts and messages name: the same rank means the same process everywhere.
  Rank JobRank(int member) const { return members[static_cast<std::size_t>(member)]; }
  Rank self() const { return JobRank(rank); }
  bool Has(Rank job_rank) const {
    return std::find(members.begin(), members.end(), job_rank) != members.end();
  }
};

}  // namespace perdure
