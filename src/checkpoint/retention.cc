#include "checkpoint/retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace perdure {
namespace {

// What the verdict on a single checkpoint needs to know of the others.
struct Facts {
  Generation own;
  std::int64_t keep = 1;
  std::int64_t own_good = 0;
  std::optional<CheckpointId> oldest_of_newest;  // nothing: there are fewer than `keep` good ones
  std::optional<CheckpointId> begun_from;
  std::map<std::int64_t, CheckpointId> first_at;  // by multiple of keep_every_steps
};

Facts Gather(const Lineage& lineage, const std::vector<KeptCheckpoint>& checkpoints,
             const RetentionPolicy& policy) {
  Facts facts;
  facts.own = lineage.front().generation;
  facts.keep = std::max(policy.keep_last_n, 1);
  facts.begun_from = BegunFrom(lineage);
  std::vector<CheckpointId> good;
  for (const KeptCheckpoint& checkpoint : checkpoints) {
    const CheckpointId& id = checkpoint.id;
    if (!checkpoint.good || !Contains(lineage, id)) continue;
    good.push_back(id);
    if (id.generation == facts.own) ++facts.own_good;
    if (policy.keep_every_steps < 1 || id.step.value() < policy.keep_every_steps) continue;
    const std::int64_t multiple = id.step.value() / policy.keep_every_steps;
    const auto [found, added] = facts.first_at.try_emplace(multiple, id);
    if (!added && NewerOnLineage(found->second, id)) found->second = id;
  }
  std::sort(good.begin(), good.end(), NewerOnLineage);
  const auto keep = static_cast<std::size_t>(facts.keep);
  if (good.size() >= keep) facts.oldest_of_newest = good[keep - 1];
  return facts;
}

RetentionVerdict Judge(const Facts& facts, bool on_lineage, const KeptCheckpoint& checkpoint,
                       const RetentionPolicy& policy) {
  const CheckpointId& id = checkpoint.id;
  const auto keep = [&](std::string reason) {
    return RetentionVerdict{id, false, std::move(reason)};
  };
  const auto retire = [&](std::string reason) {
    return RetentionVerdict{id, true, std::move(reason)};
  };
  if (id.generation > facts.own) {
    return keep(fmt::format("generation {} is newer than {}, which judges here",
                            id.generation.value(), facts.own.value()));
  }
  if (checkpoint.pinned) return keep("pinned");
  if (!on_lineage) {
    if (facts.own_good >= facts.keep) return retire("no lineage leads to it");
    return keep(fmt::format("off the lineage, but generation {} has {} of {} good ones of its own",
                            facts.own.value(), facts.own_good, facts.keep));
  }
  if (!facts.oldest_of_newest.has_value()) {
    return keep(fmt::format("the lineage has fewer than {} good ones that are older", facts.keep));
  }
  if (!NewerOnLineage(*facts.oldest_of_newest, id)) {
    return keep(checkpoint.good
                    ? fmt::format("among the newest {} good ones of the lineage", facts.keep)
                    : "damaged, and newer than the oldest that is kept");
  }
  if (facts.begun_from == id) {
    return keep(fmt::format("generation {} began from it: the last one that was read back whole",
                            facts.own.value()));
  }
  if (policy.keep_every_steps > 0) {
    const auto first = facts.first_at.find(id.step.value() / policy.keep_every_steps);
    if (first != facts.first_at.end() && first->second == id) {
      return keep(fmt::format("the first at or after step {}, a multiple of keep_every_steps",
                              first->first * policy.keep_every_steps));
    }
  }
  return retire(fmt::format("older than the newest {} good ones of the lineage", facts.keep));
}

}  // namespace

std::optional<CheckpointId> BegunFrom(const Lineage& lineage) {
  if (lineage.size() < 2 || !lineage[1].last_step.has_value()) return std::nullopt;
  return CheckpointId{lineage[1].generation, *lineage[1].last_step};
}

std::vector<RetentionVerdict> PlanRetention(const Lineage& lineage,
                                            const std::vector<KeptCheckpoint>& checkpoints,
                                            const RetentionPolicy& policy) {
  std::vector<RetentionVerdict> verdicts;
  if (lineage.empty()) return verdicts;
  const Facts facts = Gather(lineage, checkpoints, policy);
  for (const KeptCheckpoint& checkpoint : checkpoints) {
    verdicts.push_back(Judge(facts, Contains(lineage, checkpoint.id), checkpoint, policy));
  }
  std::sort(verdicts.begin(), verdicts.end(),
            [](const RetentionVerdict& a, const RetentionVerdict& b) {
              return NewerOnLineage(a.id, b.id);
            });
  return verdicts;
}

}  // namespace perdure
