// Read-only views of a copy of the supervisor's state: status, report. Pure.
#pragma once

#include <string>

#include "analysis/accounting.h"
#include "perdure/clock.h"
#include "supervisor/core/policy.h"
#include "supervisor/core/state.h"

namespace perdure {

// What the accounting needs, up to t (or to the end of the job).
JobFacts FactsOf(const core::State& state, Duration t);

// {"job", "state": waiting|training|healing|stopping|done|failed, "headline", "must_act",
//  "answered_by": supervisor|journal, "generation", "step", "loss", "steps_per_second", "ettr",
//  "last_checkpoint", "nodes", "ranks", "restarts", "last_sentence", "exit_code", "next_command",
//  …}
// `live`: a running supervisor answers and what it sees is shown; else from the journal alone.
std::string StatusJsonOf(const core::Policy& policy, const core::State& state, Duration t,
                         bool live);

// Contracts of `perdure report --format json`.
std::string ReportJsonOf(const core::Policy& policy, const core::State& state, Duration t);

}  // namespace perdure
