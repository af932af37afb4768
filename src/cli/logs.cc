// perdure logs: the output of one rank.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/posix.h"
#include "cli/verbs.h"
#include "supervisor/agent/rank_log.h"

namespace perdure::cli {
namespace {

struct LogsOptions {
  std::string state;
  int rank = 0;
  int generation = 0;  // 0: the newest that has a log of this rank
};

// Generations with a log of the rank, ascending.
std::vector<std::int64_t> GenerationsOf(const std::string& state, Rank rank) {
  namespace fs = std::filesystem;
  std::vector<std::int64_t> generations;
  std::error_code error;
  for (fs::directory_iterator entry(state + "/logs", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const std::int64_t number = name[0] == 'g' ? std::strtoll(name.c_str() + 1, nullptr, 10) : 0;
    if (number > 0 && fs::exists(agent::RankLogPath(state, Generation(number), rank))) {
      generations.push_back(number);
    }
  }
  std::sort(generations.begin(), generations.end());
  return generations;
}

int ShowLog(const LogsOptions& options) {
  const Result<std::string> state = FindStateDirectory(options.state);
  if (!state.ok()) return Complain(state.status());
  const Rank rank(options.rank);
  const std::vector<std::int64_t> generations = GenerationsOf(*state, rank);
  if (generations.empty()) {
    return Complain(Status(Code::kNotFound, fmt::format("there is no log of rank {} in {}/logs",
                                                        options.rank, *state)));
  }
  const std::int64_t generation = options.generation > 0 ? options.generation : generations.back();
  if (std::find(generations.begin(), generations.end(), generation) == generations.end()) {
    return Complain(
        Status(Code::kNotFound,
               fmt::format("there is no log of rank {} in generation {}; the newest is of {}",
                           options.rank, generation, generations.back())));
  }
  const std::string path = agent::RankLogPath(*state, Generation(generation), rank);
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return Complain(ErrnoStatus(errno, fmt::format("open {}", path)));
  char buffer[65536];
  for (;;) {
    const ssize_t got = ::read(file.get(), buffer, sizeof(buffer));
    if (got < 0) return Complain(ErrnoStatus(errno, fmt::format("read {}", path)));
    if (got == 0) return 0;
    for (ssize_t done = 0; done < got;) {
      const ssize_t put =
          ::write(STDOUT_FILENO, buffer + done, static_cast<std::size_t>(got - done));
      if (put < 0) return errno == EPIPE ? 0 : Complain(ErrnoStatus(errno, "write to stdout"));
      done += put;
    }
  }
}

}  // namespace

void AddLogsVerb(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<LogsOptions>();
  CLI::App* verb = app.add_subcommand("logs", "The output of one rank");
  verb->add_option("--state", options->state, "State directory (default: the only *.perdure here)");
  verb->add_option("--rank", options->rank, "The rank")
      ->required()
      ->check(CLI::Range(0, kNumberMax));
  verb->add_option("--generation", options->generation, "The generation (default: the newest)")
      ->check(CLI::Range(1, kNumberMax));
  verb->callback([options, &exit_code] { exit_code = ShowLog(*options); });
}

}  // namespace perdure::cli
