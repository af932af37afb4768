// The restore protocol of one rank. Runs on the training thread, because it calls the program's
// Stateful objects.
//
// Protocol:
//   1 rank 0 reads the forks (any that cannot be read is an error), finds the head, and lists what
//     of its lineage is there, newest first; retired checkpoints that are not yet deleted come last
//   2 rank 0 checks manifest and sizes of the next candidate and proposes it with the manifest's
//     digest; or a fresh start; or an error
//   3 every rank reads the same manifest, lets its parts prepare, compares names, dtypes and
//   shapes,
//     then reads and verifies every byte it needs into memory of the engine's, and answers
//   4 rank 0 decides: all good → the fork of this generation, then "go"; a wrong hash or format →
//     the candidate is passed over, back to 2; a difference or a disk's error → an error for all
//   5 on "go", and only then, every rank copies the values into the program's tensors (CKPT-8)
#pragma once

#include <string>
#include <vector>

#include "checkpoint/engine.h"
#include "checkpoint/exchange.h"
#include "checkpoint/lineage.h"
#include "checkpoint/parts.h"
#include "checkpoint/staging.h"
#include "device/device.h"
#include "perdure/checkpoint.h"
#include "perdure/status.h"
#include "storage/files.h"

namespace perdure {

struct RestoreInput {
  std::string root;
  std::string root_id;
  RestoreRules rules;
  Deadline deadline;
  const Devices* devices = nullptr;  // where the state lies
};

struct RestoreResult {
  RestoreReport report;
  std::vector<SampleRange> skipped_samples;
  Lineage lineage;  // of this generation; rank 0 only
};

Result<RestoreResult> RunRestore(const RestoreInput& input, Exchange& exchange, Files& files,
                                 Parts& parts, Staging& staging);

}  // namespace perdure
