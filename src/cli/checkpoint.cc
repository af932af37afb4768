// perdure checkpoint: look at a checkpoint directory and check it. Needs no job. The verbs that
// write are in checkpoint_change.cc.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/posix.h"
#include "checkpoint/catalog.h"
#include "checkpoint/diff.h"
#include "checkpoint/drill.h"
#include "checkpoint/inspect.h"
#include "cli/checkpoint_verbs.h"
#include "cli/progress.h"
#include "perdure/clock.h"
#include "storage/direct_files.h"

namespace perdure::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string HumanAge(std::int64_t seconds) {
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < 7200) return fmt::format("{} min", seconds / 60);
  if (seconds < 48 * 3600) return fmt::format("{} h", seconds / 3600);
  return fmt::format("{} d", seconds / 86400);
}

int List(const CheckpointVerbOptions& options) {
  DirectFiles files;
  const auto all = ListForPeople(files, options.directory);
  if (!all.ok()) return Complain(all.status());
  const WallTime now = RealClock().WallNow();
  if (options.json) {
    Json out = Json::array();
    for (const CheckpointSummary& summary : *all) {
      Json item = {{"name", summary.name},
                   {"kind", summary.kind},
                   {"step", summary.id.step.value()},
                   {"generation", summary.id.generation.value()},
                   {"bytes", summary.bytes},
                   {"world", summary.world},
                   {"created", summary.created},
                   {"on_lineage", summary.on_lineage},
                   {"pinned", summary.pinned},
                   {"pin_reason", summary.pin_reason},
                   {"problem", summary.problem}};
      const auto age = AgeSeconds(summary, now);
      item["age_seconds"] = age.has_value() ? Json(*age) : Json(nullptr);
      out.push_back(std::move(item));
    }
    fmt::print("{}\n", out.dump(2));
    return 0;
  }
  if (all->empty()) {
    fmt::print("{} holds no checkpoint yet\n", options.directory);
    return 0;
  }
  fmt::print("{:<40} {:<10} {:>10} {:>4} {:>6} {:>10} {:>8}  {}\n", "NAME", "KIND", "STEP", "GEN",
             "RANKS", "SIZE", "AGE", "LINEAGE");
  for (const CheckpointSummary& summary : *all) {
    const auto age = AgeSeconds(summary, now);
    const bool known = summary.world > 0;
    fmt::print("{:<40} {:<10} {:>10} {:>4} {:>6} {:>10} {:>8}  {}{}{}\n", summary.name,
               summary.kind, summary.id.step.value(), summary.id.generation.value(),
               known ? std::to_string(summary.world) : "-", known ? HumanBytes(summary.bytes) : "-",
               age.has_value() ? HumanAge(*age) : "-", summary.on_lineage ? "yes" : "no",
               summary.pinned ? "  pinned" : "",
               summary.problem.empty() ? "" : "  BAD: " + summary.problem);
  }
  return 0;
}

int Show(const CheckpointVerbOptions& options) {
  DirectFiles files;
  const auto name = FindCheckpoint(files, options.directory, options.name);
  if (!name.ok()) return Complain(name.status());
  if (options.json) {
    // The manifest is JSON already, checked by FindCheckpoint's reading of it or here.
    const auto manifest = ReadManifest(files, options.directory, *name);
    if (!manifest.ok()) return Complain(manifest.status());
    fmt::print("{}", FormatManifest(*manifest));
    return 0;
  }
  const auto read = ReadManifest(files, options.directory, *name);
  if (!read.ok()) return Complain(read.status());
  const Manifest& manifest = *read;
  fmt::print("{}\n", FormatName(*name));
  fmt::print("  job         {}\n", manifest.job);
  fmt::print("  step        {}\n", manifest.id.step.value());
  fmt::print("  generation  {}\n", manifest.id.generation.value());
  fmt::print("  attempt     {}\n", manifest.attempt);
  fmt::print("  created     {}\n", manifest.created);
  fmt::print("  ranks       {}\n", manifest.world);
  fmt::print("  size        {} ({} bytes)\n", HumanBytes(manifest.TotalBytes()),
             manifest.TotalBytes());
  fmt::print("  files       {}\n", manifest.files.size());
  for (const ManifestFile& file : manifest.files) {
    fmt::print("    {:<40} {:>12}\n", file.name, file.bytes);
  }
  fmt::print("  tensors     {}\n", manifest.tensors.size());
  for (const auto& [tensor, facts] : manifest.tensors) {
    fmt::print("    {:<60} {:<8} {}\n", tensor, NameOf(facts.dtype), ToString(facts.shape));
  }
  for (const auto& [alias, stored] : manifest.aliases) {
    fmt::print("    {:<60} is {}\n", alias, stored);
  }
  fmt::print("  blobs       {}\n", manifest.blobs.size());
  for (const auto& [blob, bytes] : manifest.blobs) fmt::print("    {:<60} {} bytes\n", blob, bytes);
  if (manifest.foreign.empty()) return 0;
  fmt::print("  parts       {}, with files of their own\n", manifest.foreign.size());
  for (const auto& [part, files_of_part] : manifest.foreign) {
    for (const ForeignFile& file : files_of_part) {
      fmt::print("    {:<60} {} bytes\n", part + "/" + file.name, file.bytes);
    }
  }
  return 0;
}

// What was found of one checkpoint, by either kind of check.
struct Finding {
  std::string name;
  std::int64_t bytes = 0;
  std::vector<std::string> problems;
};

Finding VerifyOne(Files& files, const std::string& directory, const CheckpointName& name) {
  ProgressBar bar("verify " + FormatName(name));
  VerifyReport report =
      VerifyCheckpoint(files, directory, name,
                       [&bar](std::int64_t done, std::int64_t total) { bar.Show(done, total); });
  return {std::move(report.name), report.bytes, std::move(report.problems)};
}

// Runs in the scratch process: the report goes through the pipe as JSON.
[[noreturn]] void DrillAndExit(const std::string& directory, const CheckpointName& name, int out) {
  DirectFiles files;
  DrillReport report;
  {
    ProgressBar bar("restore " + FormatName(name));
    report = DrillRestore(files, directory, name,
                          [&bar](std::int64_t done, std::int64_t total) { bar.Show(done, total); });
  }
  const std::string text =
      Json({{"bytes", report.bytes}, {"problems", report.problems}}).dump(-1, ' ', true);
  std::size_t at = 0;
  while (at < text.size()) {
    const ssize_t done = ::write(out, text.data() + at, text.size() - at);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) ::_exit(1);
    at += static_cast<std::size_t>(done);
  }
  ::_exit(0);
}

// Everything is loaded in a process of its own: what would end a restore (memory that is not there,
// a fault in a library) ends that process, and is told.
Finding DrillOne(Files&, const std::string& directory, const CheckpointName& name) {
  Finding finding{FormatName(name), 0, {}};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    finding.problems.push_back(ErrnoStatus(errno, "pipe").message());
    return finding;
  }
  UniqueFd in(ends[0]);
  UniqueFd out(ends[1]);
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child < 0) {
    finding.problems.push_back(ErrnoStatus(errno, "fork").message());
    return finding;
  }
  if (child == 0) {
    static_cast<void>(::prctl(PR_SET_PDEATHSIG, SIGKILL));
    DrillAndExit(directory, name, out.get());
  }
  out = UniqueFd();
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::read(in.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer, static_cast<std::size_t>(got));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const Json report = Json::parse(text, nullptr, false);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || !report.is_object()) {
    finding.problems.push_back(
        WIFSIGNALED(status)
            ? fmt::format("the process that restored it was ended by signal {}", WTERMSIG(status))
            : fmt::format("the process that restored it failed (exit code {})",
                          WIFEXITED(status) ? WEXITSTATUS(status) : -1));
    return finding;
  }
  finding.bytes = report.value("bytes", std::int64_t{0});
  for (const Json& problem : report.at("problems")) {
    finding.problems.push_back(problem.get<std::string>());
  }
  return finding;
}

int Verify(const CheckpointVerbOptions& options) {
  DirectFiles files;
  std::vector<CheckpointName> names;
  if (options.all) {
    if (!options.name.empty()) {
      return Complain(Status(Code::kInvalidArgument, "verify: name one checkpoint, or --all"));
    }
    const auto all = ListForPeople(files, options.directory);
    if (!all.ok()) return Complain(all.status());
    for (const CheckpointSummary& summary : *all) {
      if (summary.kind == "committed") names.push_back(*ParseName(summary.name));
    }
  } else {
    const auto name = FindCheckpoint(files, options.directory, options.name);
    if (!name.ok()) return Complain(name.status());
    names.push_back(*name);
  }
  bool good = true;
  Json out = Json::array();
  for (const CheckpointName& name : names) {
    const Finding report = (options.restore ? DrillOne : VerifyOne)(files, options.directory, name);
    good = good && report.problems.empty();
    out.push_back({{"name", report.name},
                   {"ok", report.problems.empty()},
                   {"bytes", report.bytes},
                   {"restored", options.restore},
                   {"problems", report.problems}});
    if (options.json) continue;
    fmt::print("{}: {} ({} {})\n", report.name, report.problems.empty() ? "ok" : "DAMAGED",
               HumanBytes(report.bytes), options.restore ? "restored and compared" : "read");
    for (const std::string& problem : report.problems) fmt::print("  {}\n", problem);
  }
  if (options.json) fmt::print("{}\n", out.dump(2));
  if (!options.json && names.empty()) {
    fmt::print("{} holds no checkpoint\n", options.directory);
  }
  return good ? 0 : 1;
}

int Diff(const CheckpointVerbOptions& options) {
  DirectFiles files;
  const std::string& directory_b =
      options.other_directory.empty() ? options.directory : options.other_directory;
  const auto a = FindCheckpoint(files, options.directory, options.name);
  if (!a.ok()) return Complain(a.status());
  const auto b = FindCheckpoint(files, directory_b, options.other);
  if (!b.ok()) return Complain(b.status());
  Result<DiffReport> report = DiffReport();
  {
    ProgressBar bar("diff");
    report =
        DiffCheckpoints(files, {options.directory, *a}, {directory_b, *b},
                        [&bar](std::int64_t done, std::int64_t total) { bar.Show(done, total); });
  }
  if (!report.ok()) return Complain(report.status());
  if (options.json) {
    Json differences = Json::array();
    for (const ContentDifference& difference : report->differences) {
      differences.push_back({{"name", difference.name},
                             {"kind", difference.kind},
                             {"what", difference.what},
                             {"different", difference.different},
                             {"elements", difference.elements}});
    }
    const Json out = {{"a", FormatName(*a)},
                      {"b", FormatName(*b)},
                      {"same", report->same},
                      {"differences", differences},
                      {"bytes_read", report->bytes_read}};
    fmt::print("{}\n", out.dump(2));
  } else {
    for (const ContentDifference& difference : report->differences) {
      fmt::print("{:<6} {:<60} {}\n", difference.kind, difference.name,
                 difference.what == "values"
                     ? fmt::format("{} of {} {} differ", difference.different, difference.elements,
                                   difference.kind == "blob" ? "bytes" : "elements")
                     : difference.what);
    }
    fmt::print("A {}, B {}: {} the same, {} different\n", FormatName(*a), FormatName(*b),
               report->same, report->differences.size());
  }
  return report->differences.empty() ? 0 : 1;
}

}  // namespace

CLI::App* AddCheckpointVerb(CLI::App& parent, const std::shared_ptr<CheckpointVerbOptions>& options,
                            int& exit_code, const std::string& name, const std::string& description,
                            CheckpointVerb run) {
  CLI::App* const verb = parent.add_subcommand(name, description);
  verb->add_option("-d,--directory", options->directory, "the checkpoint directory")
      ->capture_default_str();
  verb->add_flag("--json", options->json, "print facts as JSON");
  verb->callback([options, &exit_code, run] {
    QuietLog();
    exit_code = run(*options);
  });
  return verb;
}

void AddCheckpointVerbs(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<CheckpointVerbOptions>();
  CLI::App* const verbs = app.add_subcommand(
      "checkpoint", "Look at a checkpoint directory, check it, export from it, tidy it");
  verbs->require_subcommand(1);

  AddCheckpointVerb(*verbs, options, exit_code, "ls", "List what is there, newest first", &List);

  CLI::App* const show = AddCheckpointVerb(*verbs, options, exit_code, "show",
                                           "Say what a checkpoint consists of", &Show);
  show->add_option("name", options->name, kWhichCheckpoint);

  CLI::App* const verify = AddCheckpointVerb(
      *verbs, options, exit_code, "verify",
      "Read every byte and compare it with its hash; exit code 1: something is damaged", &Verify);
  verify->add_option("name", options->name, kWhichCheckpoint);
  verify->add_flag("--all", options->all, "every committed checkpoint");
  verify->add_flag("--restore", options->restore,
                   "a restore drill: put everything together in a scratch process, as a restore "
                   "does, and compare the hashes of that");

  CLI::App* const diff = AddCheckpointVerb(
      *verbs, options, exit_code, "diff",
      "Say what differs between two checkpoints; exit code 1: something does", &Diff);
  diff->add_option("a", options->name, "a directory name, or a step of the lineage")->required();
  diff->add_option("b", options->other, "the other one")->required();
  diff->add_option("--other-directory", options->other_directory,
                   "where b lies; default: the same directory");

  AddCheckpointChanges(*verbs, options, exit_code);
}

}  // namespace perdure::cli
