// The JSON of status and report, for people.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "analysis/accounting.h"
#include "supervisor/status/reader.h"

namespace perdure {
namespace {

using nlohmann::json;

std::string Text(const json& object, const char* key, const std::string& otherwise = "") {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

double Number(const json& object, const char* key, double otherwise = 0) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : otherwise;
}

std::int64_t Integer(const json& object, const char* key, std::int64_t otherwise = 0) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<std::int64_t>() : otherwise;
}

json Parse(const std::string& text) {
  json parsed = json::parse(text, nullptr, false);
  return parsed.is_object() ? parsed : json::object();
}

const json& List(const json& object, const char* key) {
  static const json kEmpty = json::array();
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : kEmpty;
}

Accounting AccountingOf(const json& report) {
  Accounting accounting;
  accounting.wall_ms = std::llround(Number(report, "wall_seconds") * 1000);
  accounting.ettr = Number(report, "ettr");
  accounting.steps_lost = Integer(report, "steps_lost");
  const auto buckets = report.find("buckets_seconds");
  for (std::size_t i = 0; i < kBuckets && buckets != report.end(); ++i) {
    accounting.ms[i] =
        std::llround(Number(*buckets, std::string(NameOf(static_cast<Bucket>(i))).c_str()) * 1000);
  }
  for (const json& item : List(report, "interruptions")) {
    InterruptionCost cost;
    cost.facts.time = Text(item, "time");
    cost.facts.generation = Integer(item, "generation");
    if (item.contains("rank") && item["rank"].is_number()) {
      cost.facts.rank = Integer(item, "rank");
    }
    cost.facts.node = Text(item, "node");
    cost.facts.failure_class = Text(item, "class");
    cost.facts.reason = Text(item, "reason");
    cost.detected_seconds = Number(item, "detected_seconds");
    if (item.contains("recovered_seconds") && item["recovered_seconds"].is_number()) {
      cost.recovered_seconds = Number(item, "recovered_seconds");
    }
    cost.steps_lost = Integer(item, "steps_lost");
    accounting.interruptions.push_back(std::move(cost));
  }
  return accounting;
}

}  // namespace

std::string StatusText(const std::string& status_json) {
  const json status = Parse(status_json);
  std::string text = fmt::format("{}: {}\n", Text(status, "job"), Text(status, "headline"));
  if (Text(status, "answered_by") == "journal" && Text(status, "phase") != "done") {
    text += "(the supervisor does not answer; this is what its journal says)\n";
  }
  text += fmt::format("generation {}, step {}", Integer(status, "generation"),
                      Integer(status, "step", -1));
  if (status.contains("loss") && status["loss"].is_number()) {
    text += fmt::format(", loss {:.4f}", Number(status, "loss"));
  }
  if (status.contains("steps_per_second") && status["steps_per_second"].is_number()) {
    text += fmt::format(", {:.2f} step/s", Number(status, "steps_per_second"));
  }
  text += fmt::format(", ETTR {:.1f} %\n", Number(status, "ettr") * 100);
  if (status.contains("last_checkpoint") && status["last_checkpoint"].is_object()) {
    const json& commit = status["last_checkpoint"];
    text += fmt::format("last checkpoint: {}, {:.0f} s ago\n", Text(commit, "name"),
                        Number(commit, "age_seconds"));
  } else {
    text += "last checkpoint: none yet\n";
  }
  if (status.contains("restarts")) {
    const json& restarts = status["restarts"];
    text += fmt::format("restarts: {} of {} used; {} without a newer checkpoint\n",
                        Integer(restarts, "used"), Integer(restarts, "most"),
                        Integer(restarts, "without_progress"));
  }
  for (const json& node : List(status, "nodes")) {
    std::vector<std::string> ranks;
    for (const json& rank : List(node, "ranks")) ranks.push_back(rank.dump());
    text +=
        fmt::format("node {:<8} {:<10} {}{}\n", Text(node, "node"), Text(node, "state"),
                    ranks.empty() ? std::string() : fmt::format("ranks {}", fmt::join(ranks, " ")),
                    Text(node, "reason"));
  }
  for (const json& rank : List(status, "ranks")) {
    text += fmt::format("rank {:<5} {:<8} step {:<8} {}{}\n", Integer(rank, "rank"),
                        Text(rank, "node"), Integer(rank, "step", -1), Text(rank, "phase", "-"),
                        Number(rank, "silent_seconds") > 5
                            ? fmt::format(", silent for {:.0f} s", Number(rank, "silent_seconds"))
                            : std::string());
  }
  if (const std::string last = Text(status, "last_sentence"); !last.empty()) {
    text += fmt::format("last decision: {}\n", last);
  }
  return text;
}

std::string ReportText(const std::string& report_json) {
  const json report = Parse(report_json);
  std::string text = fmt::format("{}: {}", Text(report, "job"), Text(report, "state"));
  if (const std::string end = Text(report, "end"); !end.empty()) text += ", " + end;
  text += fmt::format("\n{} generations, step {}\n\n", Integer(report, "generations"),
                      Integer(report, "step", -1));
  return text + AccountingTable(AccountingOf(report));
}

}  // namespace perdure
