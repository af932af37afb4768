// What rank 0 hands out of a manifest, so that restoring the layout that was saved costs a rank the
// same whatever the number of ranks: the common part, which grows with the names that ranks share,
// and for each rank its own files and what it has under per-rank names. Pure.
//
// A share is itself a manifest, of fewer files and names. It is the rank's alone if as many ranks
// go on as have saved; what others wrote and a rank needs as well (a replicated tensor that was
// written by all of its holders) it finds in the whole manifest.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "perdure/ids.h"
#include "perdure/status.h"

namespace perdure {

struct Handout {
  std::string common;
  std::vector<std::string> own;  // by rank
};

Handout MakeHandout(const Manifest& manifest);

// The share of one rank, from the common part and its own. kDataLoss when a text is not what
// MakeHandout wrote.
Result<Manifest> ReadShare(std::string_view common, std::string_view own, const std::string& what);

// Which of all names of a manifest are in the share of a rank: places in `names`, ascending. A
// share lists its names in the same order.
class ShareOfNames {
 public:
  ShareOfNames(const std::vector<std::string>& names, int world);
  std::vector<std::size_t> Of(Rank rank) const;
  // What is nobody's own; in a world of no ranks everything.
  const std::vector<std::size_t>& Common() const { return common_; }

 private:
  std::vector<std::size_t> common_;
  std::vector<std::vector<std::size_t>> own_;  // by rank
};

}  // namespace perdure
