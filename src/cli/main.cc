// perdure: one program for the supervisor, the agents, the stub of a rank, and the people who look
// at a job. A file per verb.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cli/verbs.h"
#include "supervisor/agent/stub.h"

namespace {

// "--ranks_per_node" means "--ranks-per-node". What follows a bare "--" is left alone.
std::vector<std::string> NormalizedWords(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  for (std::string& word : words) {
    if (word == "--") break;
    if (word.rfind("--", 0) != 0) continue;
    std::replace(word.begin(),
                 word.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size())),
                 '_', '-');
  }
  std::reverse(words.begin(), words.end());  // as CLI11 takes them
  return words;
}

bool HasVerb(const CLI::App& app, const std::string& name) {
  const auto verbs = app.get_subcommands([](const CLI::App*) { return true; });
  return std::any_of(verbs.begin(), verbs.end(),
                     [&](const CLI::App* verb) { return verb->get_name() == name; });
}

std::string OneLine(std::string text) {
  text = text.substr(0, text.find_last_not_of(" \n") + 1);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  // Not a verb for people, and nothing but the program it becomes may be in its way.
  if (argc > 1 && std::strcmp(argv[1], "_rank") == 0) {
    return perdure::agent::RunStub(std::vector<std::string>(argv + 2, argv + argc));
  }

  int exit_code = 0;
  CLI::App app("Perdure keeps distributed training runs alive", "perdure");
  app.require_subcommand(1);
  perdure::cli::AddRunVerb(app, exit_code);
  perdure::cli::AddSupervisorVerb(app, exit_code);
  perdure::cli::AddAgentVerb(app, exit_code);
  perdure::cli::AddStatusVerb(app, exit_code);
  perdure::cli::AddEventsVerb(app, exit_code);
  perdure::cli::AddReportVerb(app, exit_code);
  perdure::cli::AddLogsVerb(app, exit_code);
  perdure::cli::AddStopVerb(app, exit_code);
  perdure::cli::AddChaosVerb(app, exit_code);
  perdure::cli::AddCheckpointVerbs(app, exit_code);
  if (argc > 1 && argv[1][0] != '-' && !HasVerb(app, argv[1])) {
    fmt::print(stderr, "perdure: there is no verb \"{}\" (perdure --help lists them)\n", argv[1]);
    return perdure::cli::kUsage;
  }
  try {
    app.parse(NormalizedWords(argc, argv));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    const std::string verb = chosen.empty() ? "perdure" : "perdure " + chosen.front()->get_name();
    fmt::print(stderr, "{}: {} ({} --help shows the usage)\n", verb, OneLine(error.what()), verb);
    return perdure::cli::kUsage;
  }
  return exit_code;
}
