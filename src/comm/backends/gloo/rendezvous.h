// How the ranks of a communicator find each other: each publishes where it listens under
// /comm/<id>/address/<rank> and reads where the others do.
#pragma once

#include <string>
#include <vector>

#include "comm/backends/gloo/gloo_backend.h"

namespace perdure {

// addresses[i]: where this rank listens for rank i. Returns for each rank i where it listens for
// this one. At the deadline: kUnavailable with the ranks that have not come. Sooner, when the
// arbiter knows that one cannot come.
Result<std::vector<std::vector<char>>> ExchangeAddresses(
    const Group& group, const std::vector<std::vector<char>>& addresses, KeyValue& store,
    FailureArbiter& arbiter, Deadline deadline);

// kUnavailable "communicator world: 2 of 4 ranks have not come …: ranks 1, 3", told to the others
// as the cause.
Status MissingRanks(const Group& group, const std::vector<int>& missing, const std::string& what,
                    FailureArbiter& arbiter);

}  // namespace perdure
