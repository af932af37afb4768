// perdure events: what happened to a job and what was decided, in the supervisor's own sentences.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/job_client.h"
#include "cli/verbs.h"
#include "supervisor/status/reader.h"

namespace perdure::cli {
namespace {

// A followed stream is asked for again after so long.
constexpr Duration kFollowSpan = std::chrono::hours(1);

struct EventsOptions {
  std::string state;
  std::int64_t first = 1;
  bool follow = false;
  bool json = false;
};

bool PrintEvent(const EventsOptions& options, const std::string& text) {
  if (options.json) {
    fmt::print("{}\n", text);
    std::fflush(stdout);
    return std::ferror(stdout) == 0;
  }
  const auto event = nlohmann::json::parse(text, nullptr, false);
  if (!event.is_object()) return true;
  fmt::print("t={:.3f}  {}\n", event.value("t", 0.0), event.value("text", ""));
  if (event.contains("detail")) fmt::print("          -> {}\n", event.value("detail", ""));
  if (event.contains("sentence")) fmt::print("          \"{}\"\n", event.value("sentence", ""));
  std::fflush(stdout);
  return std::ferror(stdout) == 0;
}

int ShowEvents(const EventsOptions& options) {
  const Result<std::string> state = FindStateDirectory(options.state);
  if (!state.ok()) return Complain(state.status());
  std::int64_t next = options.first;
  const auto print = [&](const std::string& event) {
    ++next;
    return PrintEvent(options, event);
  };
  if (const auto supervisor = DialSupervisor(*state); supervisor.ok()) {
    for (;;) {
      const Status status =
          (*supervisor)
              ->Events(next, options.follow,
                       Deadline::After(options.follow ? kFollowSpan : kAnswerPatience), print);
      if (status.ok()) return 0;
      if (status.code() == Code::kDeadlineExceeded && options.follow) continue;
      fmt::print(stderr, "perdure: the supervisor does not answer; the rest is from its journal\n");
      break;
    }
  }
  const Status status = JobReader(*state).Events(next, print);
  return status.ok() ? 0 : Complain(status);
}

}  // namespace

void AddEventsVerb(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<EventsOptions>();
  CLI::App* verb = app.add_subcommand("events", "What happened, and what was decided");
  verb->add_option("--state", options->state, "State directory (default: the only *.perdure here)");
  verb->add_option("--from", options->first, "Number of the first event")
      ->check(CLI::Range(1, kNumberMax));
  verb->add_flag("--follow", options->follow, "Wait for new events until the job ends");
  verb->add_flag("--json", options->json, "One JSON object per line");
  verb->callback([options, &exit_code] { exit_code = ShowEvents(*options); });
}

}  // namespace perdure::cli
