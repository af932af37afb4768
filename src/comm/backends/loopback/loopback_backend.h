// Ranks as threads of one process, or one rank alone: collectives by plain memory copies under one
// lock. For tests, and for a world of size 1.
#pragma once

#include <memory>

#include "comm/backend.h"

namespace perdure {

class LoopbackHub;

// The place where the ranks of one communicator meet.
std::shared_ptr<LoopbackHub> MakeLoopbackHub(int size);

std::unique_ptr<Backend> MakeLoopbackBackend(std::shared_ptr<LoopbackHub> hub, int rank);

}  // namespace perdure
