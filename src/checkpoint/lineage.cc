#include "checkpoint/lineage.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "checkpoint/damage.h"
#include "checkpoint/json.h"

namespace perdure {
namespace {

using Json = nlohmann::json;

}  // namespace

std::string FormatFork(const Fork& fork) {
  std::string text = "{\n";
  text += "\"format_version\": 1,\n";
  text += fmt::format("\"generation\": {},\n", fork.generation.value());
  if (fork.parent.has_value()) {
    text += fmt::format("\"parent\": {{\"generation\": {}, \"step\": {}}},\n",
                        fork.parent->generation.value(), fork.parent->step.value());
  } else {
    text += "\"parent\": null,\n";
  }
  text += fmt::format("\"reason\": {},\n", QuoteJson(fork.reason));
  text += "\"passed_over\": [";
  for (std::size_t i = 0; i < fork.passed_over.size(); ++i) {
    text +=
        fmt::format("{}\n  {{\"checkpoint\": {}, \"reason\": {}}}", i == 0 ? "" : ",",
                    QuoteJson(fork.passed_over[i].first), QuoteJson(fork.passed_over[i].second));
  }
  text += "],\n\"skipped_samples\": [";
  for (std::size_t i = 0; i < fork.skipped_samples.size(); ++i) {
    text += fmt::format("{}[{}, {}]", i == 0 ? "" : ", ", fork.skipped_samples[i].begin,
                        fork.skipped_samples[i].end);
  }
  text += "],\n";
  return SealJson(std::move(text));
}

Result<Fork> ParseFork(std::string_view text, const std::string& what) {
  PERDURE_RETURN_IF_ERROR(CheckSeal(text, what).status());
  PERDURE_ASSIGN_OR_RETURN(const Json json, ParseJson(text, what));
  PERDURE_RETURN_IF_ERROR(JsonFormatVersion(json, /*newest=*/1, what).status());
  Fork fork;
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t generation, JsonCount(json, "generation", what));
  fork.generation = Generation(generation);
  const auto parent = json.find("parent");
  if (parent == json.end()) return Damaged(what, "\"parent\" is missing");
  if (!parent->is_null()) {
    PERDURE_ASSIGN_OR_RETURN(const std::int64_t parent_generation,
                             JsonCount(*parent, "generation", what));
    PERDURE_ASSIGN_OR_RETURN(const std::int64_t step, JsonCount(*parent, "step", what));
    fork.parent = CheckpointId{Generation(parent_generation), Step(step)};
  }
  PERDURE_ASSIGN_OR_RETURN(fork.reason, JsonText(json, "reason", what));
  PERDURE_ASSIGN_OR_RETURN(const Json* const passed_over,
                           JsonMember(json, "passed_over", Json::value_t::array, what));
  for (const Json& item : *passed_over) {
    PERDURE_ASSIGN_OR_RETURN(std::string name, JsonText(item, "checkpoint", what));
    PERDURE_ASSIGN_OR_RETURN(std::string reason, JsonText(item, "reason", what));
    fork.passed_over.emplace_back(std::move(name), std::move(reason));
  }
  PERDURE_ASSIGN_OR_RETURN(const Json* const skipped,
                           JsonMember(json, "skipped_samples", Json::value_t::array, what));
  for (const Json& item : *skipped) {
    const Result<Shape> range = JsonShape({{"range", item}}, "range", what);
    if (!range.ok() || range->size() != 2 || (*range)[1] < (*range)[0]) {
      return Damaged(what, "\"skipped_samples\" holds something that is not [begin, end]");
    }
    fork.skipped_samples.push_back({(*range)[0], (*range)[1]});
  }
  return fork;
}

Result<Lineage> LineageOf(Generation head, const std::vector<Fork>& forks) {
  std::map<Generation, const Fork*> by_generation;
  for (const Fork& fork : forks) by_generation[fork.generation] = &fork;
  Lineage lineage;
  Generation generation = head;
  std::optional<Step> last_step;
  for (;;) {
    const auto found = by_generation.find(generation);
    if (found == by_generation.end()) {
      return Status(Code::kDataLoss,
                    fmt::format("the lineage leads to generation {}, which has no fork (lineage/g{}"
                                ".json); restore that file, or start anew with resume: never",
                                generation.value(), generation.value()));
    }
    lineage.push_back({generation, last_step});
    const Fork& fork = *found->second;
    if (!fork.parent.has_value()) return lineage;
    if (fork.parent->generation >= generation) {
      return Status(Code::kDataLoss,
                    fmt::format("lineage/g{}.json names generation {} as its parent, which is not "
                                "older",
                                generation.value(), fork.parent->generation.value()));
    }
    generation = fork.parent->generation;
    last_step = fork.parent->step;
  }
}

std::optional<Generation> HeadOf(const std::vector<Fork>& forks) {
  std::optional<Generation> head;
  for (const Fork& fork : forks) {
    if (!head.has_value() || *head < fork.generation) head = fork.generation;
  }
  return head;
}

bool Contains(const Lineage& lineage, const CheckpointId& id) {
  return std::any_of(lineage.begin(), lineage.end(), [&](const LineageLink& link) {
    return link.generation == id.generation &&
           (!link.last_step.has_value() || id.step <= *link.last_step);
  });
}

bool NewerOnLineage(const CheckpointId& a, const CheckpointId& b) {
  // Along one lineage a later generation began at or after its parent's step, so a child's
  // checkpoints come after every one of the parent's that is still on it.
  return a.generation != b.generation ? a.generation > b.generation : a.step > b.step;
}

std::vector<SampleRange> SkippedSamples(const Lineage& lineage, const std::vector<Fork>& forks) {
  std::vector<SampleRange> all;
  for (const Fork& fork : forks) {
    const bool on_lineage =
        std::any_of(lineage.begin(), lineage.end(),
                    [&](const LineageLink& link) { return link.generation == fork.generation; });
    if (!on_lineage) continue;
    all.insert(all.end(), fork.skipped_samples.begin(), fork.skipped_samples.end());
  }
  std::sort(all.begin(), all.end(), [](const SampleRange& a, const SampleRange& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::vector<SampleRange> merged;
  for (const SampleRange& range : all) {
    if (range.end <= range.begin) continue;
    if (!merged.empty() && range.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

}  // namespace perdure
