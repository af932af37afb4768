// Which checkpoints a generation descends from: the fork of each generation says where it left
// which parent, and the chain of forks from the head back to the beginning is the lineage. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "perdure/checkpoint.h"
#include "perdure/ids.h"
#include "perdure/status.h"

namespace perdure {

// A checkpoint's place: who wrote it, and the step it holds.
struct CheckpointId {
  Generation generation;
  Step step;
  friend bool operator==(const CheckpointId&, const CheckpointId&) = default;
};

// lineage/gN.json: written once by rank 0 of generation N, after all ranks agreed what to restore.
struct Fork {
  Generation generation;
  std::optional<CheckpointId> parent;  // nothing: a fresh start
  std::string reason;
  // Newer checkpoints that were not used, each with why.
  std::vector<std::pair<std::string, std::string>> passed_over;
  std::vector<SampleRange> skipped_samples;
  friend bool operator==(const Fork&, const Fork&) = default;
};

std::string FormatFork(const Fork& fork);
// kDataLoss unless `text` is exactly what FormatFork writes, digest included. `what` names the file
// in messages.
Result<Fork> ParseFork(std::string_view text, const std::string& what);

// Generation G contributes its own steps up to `last_step` (nothing: all of them).
struct LineageLink {
  Generation generation;
  std::optional<Step> last_step;
  friend bool operator==(const LineageLink&, const LineageLink&) = default;
};

// Newest first.
using Lineage = std::vector<LineageLink>;

// The lineage of generation `head`, which must have a fork. An error names a parent that has no
// fork, or that is not older than its child.
Result<Lineage> LineageOf(Generation head, const std::vector<Fork>& forks);

// The highest generation that has a fork (claims without one crashed before it); nothing when there
// is none.
std::optional<Generation> HeadOf(const std::vector<Fork>& forks);

// CKPT-4.
bool Contains(const Lineage& lineage, const CheckpointId& id);

// Newest first in the order of the lineage: by generation along the chain, then by step.
bool NewerOnLineage(const CheckpointId& a, const CheckpointId& b);

// What the forks along the lineage took out of the data, sorted and merged.
std::vector<SampleRange> SkippedSamples(const Lineage& lineage, const std::vector<Fork>& forks);

}  // namespace perdure
