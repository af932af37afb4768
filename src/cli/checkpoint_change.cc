// perdure checkpoint export | prune | pin: those that write.
#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <limits>
#include <string>

#include "checkpoint/export.h"
#include "checkpoint/inspect.h"
#include "checkpoint/pins.h"
#include "checkpoint/prune.h"
#include "cli/checkpoint_verbs.h"
#include "cli/progress.h"
#include "perdure/clock.h"
#include "storage/direct_files.h"
#include "storage/file_store.h"

namespace perdure::cli {
namespace {

using Json = nlohmann::ordered_json;

int Export(const CheckpointVerbOptions& options) {
  DirectFiles files;
  ExportOptions choice;
  if (options.all_parts) {
    choice.part.reset();
  } else {
    choice.part = options.part;
  }
  if (!options.max_shard_size.empty()) {
    const Result<std::int64_t> size = ParseSize(options.max_shard_size);
    if (!size.ok()) return Complain(size.status().WithContext("--max-shard-size"));
    choice.shard_bytes_max = *size;
  }
  const auto name = FindCheckpoint(files, options.directory, options.name);
  if (!name.ok()) return Complain(name.status());
  Result<ExportReport> report = ExportReport();
  {
    ProgressBar bar("export " + FormatName(*name));
    report =
        ExportCheckpoint(files, options.directory, *name, choice, options.out,
                         [&bar](std::int64_t done, std::int64_t total) { bar.Show(done, total); });
  }
  if (report.status().code() == Code::kAlreadyExists) {
    return Complain(Status(Code::kInvalidArgument, report.status().message()));
  }
  if (!report.ok()) return Complain(report.status());
  if (options.json) {
    const Json out = {{"checkpoint", FormatName(*name)},
                      {"path", report->path},
                      {"files", report->files},
                      {"tensors", report->tensors},
                      {"bytes", report->bytes}};
    fmt::print("{}\n", out.dump(2));
    return 0;
  }
  const std::string in_files =
      report->files.size() > 1 ? fmt::format(" in {} files", report->files.size()) : "";
  fmt::print("{}: {} tensors of {}, {}{}\n", report->path, report->tensors, FormatName(*name),
             HumanBytes(report->bytes), in_files);
  return 0;
}

int Prune(const CheckpointVerbOptions& options) {
  if (options.keep_last_n < 2) {
    return Complain(Status(Code::kInvalidArgument,
                           fmt::format("--keep-last-n {}: with one copy there is nothing to fall "
                                       "back to when it turns out damaged; give 2 or more",
                                       options.keep_last_n)));
  }
  DirectFiles files;
  const PruneOptions prune{
      {options.keep_last_n, options.keep_every_steps}, options.dry_run, options.fence};
  const Result<PruneReport> report =
      PruneCheckpoints(files, options.directory, prune, RealClock().WallNow());
  if (!report.ok()) return Complain(report.status());
  if (options.json) {
    Json verdicts = Json::array();
    for (const RetentionVerdict& verdict : report->verdicts) {
      verdicts.push_back({{"name", CommittedName(verdict.id)},
                          {"retire", verdict.retire},
                          {"reason", verdict.reason}});
    }
    const Json out = {
        {"dry_run", options.dry_run}, {"verdicts", verdicts}, {"deleted", report->deleted}};
    fmt::print("{}\n", out.dump(2));
    return 0;
  }
  for (const RetentionVerdict& verdict : report->verdicts) {
    const char* const what = !verdict.retire ? "keep" : options.dry_run ? "would go" : "gone";
    fmt::print("{:<8}  {:<24}  {}\n", what, CommittedName(verdict.id), verdict.reason);
  }
  if (report->verdicts.empty()) fmt::print("{} holds no checkpoint\n", options.directory);
  return 0;
}

int SayPinned(const CheckpointVerbOptions& options, const std::string& name) {
  if (options.json) {
    fmt::print("{}\n", Json({{"checkpoint", name}, {"pinned", !options.unpin}}).dump(2));
  } else {
    fmt::print("{} is {}\n", name, options.unpin ? "not pinned any more" : "pinned");
  }
  return 0;
}

int PinOrUnpin(const CheckpointVerbOptions& options) {
  DirectFiles files;
  FileStore store(files, options.directory);
  const auto name = FindCheckpoint(files, options.directory, options.name);
  std::optional<CheckpointName> named = ParseName(options.name);
  if (options.unpin && !name.ok() && named.has_value()) {
    // The pin of a checkpoint that was moved away can be lifted, too.
    const Status lifted = UnpinCheckpoint(store, named->id);
    return lifted.ok() ? SayPinned(options, CommittedName(named->id)) : Complain(lifted);
  }
  if (!name.ok()) return Complain(name.status());
  const std::string text = CommittedName(name->id);
  if (!options.unpin && name->kind != NameKind::kCommitted) {
    return Complain(Status(Code::kFailedPrecondition,
                           fmt::format("{} is retired and goes at the next commit: too late to pin "
                                       "it; export it",
                                       FormatName(*name))));
  }
  const Status done = options.unpin
                          ? UnpinCheckpoint(store, name->id)
                          : PinCheckpoint(store, name->id, options.reason, RealClock().WallNow());
  return done.ok() ? SayPinned(options, text) : Complain(done);
}

}  // namespace

Result<std::int64_t> ParseSize(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  const std::pair<const char*, std::int64_t> units[] = {
      {"", 1},
      {"B", 1},
      {"KB", 1000},
      {"MB", 1000 * 1000},
      {"GB", 1000 * 1000 * 1000},
      {"KiB", std::int64_t{1} << 10},
      {"MiB", std::int64_t{1} << 20},
      {"GiB", std::int64_t{1} << 30},
  };
  for (const auto& [name, factor] : units) {
    if (error != std::errc() || unit != name || number < 1) continue;
    if (number > std::numeric_limits<std::int64_t>::max() / factor) break;
    return number * factor;
  }
  return Status(Code::kInvalidArgument,
                fmt::format("found \"{}\"; expected a size such as 5GB, 512MiB or 4096", text));
}

void AddCheckpointChanges(CLI::App& verbs, const std::shared_ptr<CheckpointVerbOptions>& options,
                          int& exit_code) {
  CLI::App* const exported =
      AddCheckpointVerb(verbs, options, exit_code, "export",
                        "Write the tensors of one part into safetensors files, as a state dict of "
                        "that part names them",
                        &Export);
  exported->add_option("name", options->name, kWhichCheckpoint)->required();
  exported->add_option("out", options->out, "a new file, or a directory for model.safetensors")
      ->required();
  exported->add_option("--part", options->part, "the part, as the program added it")
      ->capture_default_str();
  exported->add_flag("--all-parts", options->all_parts,
                     "every tensor, under its full name (\"model.…\", \"optimizer.…\")");
  exported->add_option("--max-shard-size", options->max_shard_size,
                       "into a directory, in files of at most so much data, as in 5GB, with "
                       "model.safetensors.index.json beside them");

  CLI::App* const prune = AddCheckpointVerb(
      verbs, options, exit_code, "prune",
      "Retention by hand, after the job has ended: keeps the newest good ones of the lineage, what "
      "is pinned, and what the last generation began from; deletes the rest",
      &Prune);
  prune->add_option("--keep-last-n", options->keep_last_n, "the newest good ones that stay")
      ->capture_default_str();
  prune
      ->add_option("--keep-every-steps", options->keep_every_steps,
                   "also the first one at or after each multiple of so many steps")
      ->check(CLI::Range(std::int64_t{1}, std::numeric_limits<std::int64_t>::max()));
  prune->add_flag("--dry-run", options->dry_run, "only say what would go, and why");
  prune->add_flag("--fence", options->fence,
                  "even if a generation may be at work: it can commit no more from then on");

  CLI::App* const pin = AddCheckpointVerb(
      verbs, options, exit_code, "pin",
      "Keep a checkpoint, whatever retention says, until it is unpinned", &PinOrUnpin);
  pin->add_option("name", options->name, "a directory name, or a step of the lineage")->required();
  pin->add_option("--reason", options->reason, "why, for whoever wonders later");
  pin->add_flag("--unpin", options->unpin, "lift the pin");
}

}  // namespace perdure::cli
