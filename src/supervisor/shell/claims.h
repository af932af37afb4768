// The numbers that generations have taken on a checkpoint root.
#pragma once

#include <string>

#include "perdure/ids.h"

namespace perdure {

// The highest N of the files lineage/gN.claim and lineage/gN.json; 0 when there are none, or no
// directory yet. Only names are read: what is in them is the checkpoint room's business.
Generation HighestClaim(const std::string& checkpoint_directory);

}  // namespace perdure
