// perdure status, report: what a job is doing, and where its time went.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/job_client.h"
#include "cli/verbs.h"
#include "supervisor/status/reader.h"

namespace perdure::cli {
namespace {

struct StatusVerbOptions {
  std::string state;
  std::string format = "text";
  bool json = false;
};

void Print(const StatusVerbOptions& options, const std::string& json,
           std::string (*to_text)(const std::string&)) {
  if (options.json || options.format == "json") {
    const auto parsed = nlohmann::json::parse(json, nullptr, false);
    fmt::print("{}\n", parsed.is_discarded() ? json : parsed.dump(2));
  } else {
    fmt::print("{}", to_text(json));
  }
}

int ShowStatus(const StatusVerbOptions& options) {
  const Result<std::string> state = FindStateDirectory(options.state);
  if (!state.ok()) return Complain(state.status());
  Result<std::string> json = Status(Code::kUnavailable, "");
  if (const auto supervisor = DialSupervisor(*state); supervisor.ok()) {
    json = (*supervisor)->StatusJson();
  }
  if (!json.ok()) json = JobReader(*state).StatusJson(RealClock().WallNow());
  if (!json.ok()) return Complain(json.status());
  Print(options, *json, &StatusText);
  return 0;
}

int ShowReport(const StatusVerbOptions& options) {
  const Result<std::string> state = FindStateDirectory(options.state);
  if (!state.ok()) return Complain(state.status());
  const Result<std::string> json = JobReader(*state).ReportJson(RealClock().WallNow());
  if (!json.ok()) return Complain(json.status());
  Print(options, *json, &ReportText);
  return 0;
}

std::shared_ptr<StatusVerbOptions> Declare(CLI::App& verb) {
  auto options = std::make_shared<StatusVerbOptions>();
  verb.add_option("--state", options->state, "State directory (default: the only *.perdure here)");
  verb.add_flag("--json", options->json, "Print JSON");
  return options;
}

}  // namespace

void AddStatusVerb(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("status", "Is it training, is it healing, must I act");
  auto options = Declare(*verb);
  verb->callback([options, &exit_code] { exit_code = ShowStatus(*options); });
}

void AddReportVerb(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("report", "Where the job's time went, and its interruptions");
  auto options = Declare(*verb);
  verb->add_option("--format", options->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}));
  verb->callback([options, &exit_code] { exit_code = ShowReport(*options); });
}

}  // namespace perdure::cli
