#include "supervisor/core/state.h"

#include <fmt/format.h>

namespace perdure::core {

const GenerationRecord* CurrentRecord(const Durable& durable) {
  return durable.generations.empty() ? nullptr : &durable.generations.back();
}

std::string NodeOf(const Durable& durable, Rank rank) {
  for (const Placed& placed : durable.placed) {
    if (rank >= placed.first_rank && rank.value() < placed.first_rank.value() + placed.count) {
      return placed.node;
    }
  }
  return "";
}

std::string CheckpointName(perdure::Step step, Generation generation) {
  return fmt::format("step-{:08}.g{}", step.value(), generation.value());
}

}  // namespace perdure::core
