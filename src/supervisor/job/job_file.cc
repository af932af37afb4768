#include "supervisor/job/job_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/parse.h"
#include "base/posix.h"
#include "supervisor/job/yaml_reader.h"

namespace perdure {
namespace {

namespace fs = std::filesystem;
using job::Problems;
using job::Section;

constexpr std::int64_t kNodesMax = 100'000;
constexpr std::int64_t kRanksPerNodeMax = 1024;
constexpr double kSecondsMax = 30.0 * 86400;
// Three reports of a rank (0.5 s each) must fit into the half of it after which a rank is
// suspected.
constexpr double kHeartbeatTimeoutLeast = 4;
// A shorter step deadline than a few reports could not be told from a late report.
constexpr double kStepDeadlineLeast = 2;

std::string Absolute(const std::string& path, const std::string& directory) {
  const fs::path given(path);
  return (given.is_absolute() ? given : fs::path(directory) / given).lexically_normal().string();
}

bool GoodName(const std::string& name) {
  return !name.empty() && name.size() <= 64 && name[0] != '.' && name[0] != '-' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == '.';
         });
}

void ReadModel(Section& top, JobFile& job) {
  Section section = top.Sub("model");
  if (!section.present()) return;
  JobFile::Model model;
  model.params = section.Text("params").value_or("");
  model.dtype = section.Text("dtype").value_or("");
  for (const auto& [axis, text] : section.Pairs("parallel")) {
    const std::optional<std::int64_t> size = ParseInteger(text);
    if (!size.has_value() || *size < 1 || *size > std::numeric_limits<int>::max()) {
      section.Wrong("parallel", fmt::format("axis {} has \"{}\"; expected a whole number, at "
                                            "least 1",
                                            axis, text));
      continue;
    }
    model.parallel.emplace_back(axis, static_cast<int>(*size));
  }
  section.Finish();
  job.model = std::move(model);
}

void ReadLaunch(Section& top, const JobOverrides& overrides, JobFile& job) {
  Section section = top.Sub("launch");
  JobFile::Launch& launch = job.launch;
  if (const auto launcher = section.OneOf("launcher", {"local", "slurm"})) {
    if (*launcher == "slurm") {
      section.Wrong("launcher", "slurm is planned and not there yet; use local");
    }
    launch.launcher = *launcher;
  }
  launch.nodes = static_cast<int>(section.Integer("nodes", 1, kNodesMax).value_or(1));
  launch.spares = static_cast<int>(section.Integer("spares", 0, kNodesMax).value_or(0));
  launch.ranks_per_node =
      static_cast<int>(section.Integer("ranks_per_node", 1, kRanksPerNodeMax).value_or(1));
  for (auto& [name, value] : section.Pairs("env")) launch.env.emplace(name, value);
  section.Finish();
  if (overrides.nodes) launch.nodes = *overrides.nodes;
  if (overrides.spares) launch.spares = *overrides.spares;
  if (overrides.ranks_per_node) launch.ranks_per_node = *overrides.ranks_per_node;
}

constexpr double kLostMinutesLeast = 0.1;
constexpr double kLostMinutesMost = 7 * 24 * 60;

void ReadCheckpoint(Section& top, JobFile& job) {
  Section section = top.Sub("checkpoint");
  if (!section.present()) return;
  JobFile::Checkpoint checkpoint;
  if (const auto directory = section.Text("directory")) {
    checkpoint.directory = Absolute(*directory, job.directory);
  } else {
    section.Wrong("directory", "is missing; say where checkpoints are to be kept");
  }
  checkpoint.interval_steps =
      section.Integer("interval_steps", 1, std::numeric_limits<std::int64_t>::max());
  checkpoint.interval_auto = section.OneOf("interval", {"auto"}).has_value();
  checkpoint.max_lost_minutes =
      section.Number("max_lost_minutes", kLostMinutesLeast, kLostMinutesMost, "minutes");
  if (checkpoint.interval_steps && (checkpoint.interval_auto || checkpoint.max_lost_minutes)) {
    section.Wrong("interval_steps",
                  fmt::format("is given beside {}; use one: steps, or an interval that is chosen",
                              checkpoint.max_lost_minutes ? "max_lost_minutes" : "interval: auto"));
  }
  if (const auto init_from = section.Text("init_from")) {
    checkpoint.init_from = Absolute(*init_from, job.directory);
  }
  for (auto& [ours, theirs] : section.Pairs("init_names")) {
    checkpoint.init_names.emplace(ours, theirs);
  }
  if (!checkpoint.init_names.empty() && checkpoint.init_from.empty()) {
    section.Wrong("init_names", "is of no use without init_from; give the files, too");
  }
  checkpoint.async_save = section.Boolean("async_save").value_or(true);
  if (const auto keep = section.Integer("keep_last_n", 0, 1'000'000)) {
    if (*keep < 2) {
      section.Wrong("keep_last_n",
                    fmt::format("found {}; expected at least 2: with one copy there is nothing to "
                                "fall back to when it turns out damaged",
                                *keep));
    }
    checkpoint.keep_last_n = static_cast<int>(*keep);
  }
  checkpoint.keep_every_steps =
      section.Integer("keep_every_steps", 1, std::numeric_limits<std::int64_t>::max()).value_or(0);
  if (const auto resume = section.OneOf("resume", {"require", "auto", "never"})) {
    checkpoint.resume = *resume == "require" ? ResumeMode::kRequire
                        : *resume == "never" ? ResumeMode::kNever
                                             : ResumeMode::kAuto;
  }
  checkpoint.staging_bytes_max =
      section.Integer("staging_bytes_max", 1, std::numeric_limits<std::int64_t>::max()).value_or(0);
  if (const auto when_busy = section.OneOf("when_busy", {"wait", "skip", "queue"})) {
    checkpoint.when_busy = *when_busy == "skip"    ? SaveWhenBusy::kSkip
                           : *when_busy == "queue" ? SaveWhenBusy::kQueue
                                                   : SaveWhenBusy::kWait;
  }
  Section on_failure = section.Sub("on_failure");
  (void)on_failure.OneOf("tell", {"always"});
  checkpoint.stop_after =
      static_cast<int>(on_failure.Integer("stop_after", 1, 1'000'000).value_or(3));
  on_failure.Finish();
  section.Finish();
  job.checkpoint = std::move(checkpoint);
}

void ReadDeadlines(Section& fault, JobFile::FaultTolerance& tolerance) {
  Section section = fault.Sub("deadlines");
  tolerance.init_s = section.Number("init", 1, kSecondsMax, "seconds");
  tolerance.restore_s = section.Number("restore", 1, kSecondsMax, "seconds");
  tolerance.checkpoint_s = section.Number("checkpoint", 1, kSecondsMax, "seconds");
  const bool learned = section.Has("step") && section.Text("step").value_or("") == "learned";
  if (!learned) {
    tolerance.step_s =
        section.Number("step", kStepDeadlineLeast, kSecondsMax, "the word learned, or seconds");
  }
  if (tolerance.init_s && tolerance.step_s && *tolerance.init_s < *tolerance.step_s) {
    section.Wrong("init", fmt::format("{:g} s contradicts step: {:g} s; the first steps of a "
                                      "generation have the init deadline, so it must be at least "
                                      "as long",
                                      *tolerance.init_s, *tolerance.step_s));
  }
  section.Finish();
}

void ReadFaultTolerance(Section& top, JobFile& job) {
  Section section = top.Sub("fault_tolerance");
  JobFile::FaultTolerance& tolerance = job.fault_tolerance;
  tolerance.heartbeat_timeout_s =
      section.Number("heartbeat_timeout_s", kHeartbeatTimeoutLeast, kSecondsMax, "seconds");
  ReadDeadlines(section, tolerance);
  tolerance.stop_grace_s = section.Number("stop_grace_s", 0.1, kSecondsMax, "seconds");
  tolerance.preemption_grace_s = section.Number("preemption_grace_s", 1, kSecondsMax, "seconds");
  tolerance.auto_isolate_bad_node = section.Boolean("auto_isolate_bad_node").value_or(true);
  tolerance.max_auto_restart =
      static_cast<int>(section.Integer("max_auto_restart", 0, 1'000'000).value_or(50));
  tolerance.refill_after_s = section.Number("refill_after_s", 1, 1e9, "seconds").value_or(86400);
  tolerance.max_no_progress_restarts =
      static_cast<int>(section.Integer("max_no_progress_restarts", 1, 1'000'000).value_or(3));
  section.Finish();
}

void ReadObservability(Section& top) {
  Section section = top.Sub("observability");
  section.NoEffectYet("metrics");
  section.NoEffectYet("alert_on");
  section.Finish();
}

void CheckRanks(Section& top, const JobOverrides& overrides, const JobFile& job) {
  if (!job.model.has_value() || job.model->parallel.empty()) return;
  std::int64_t product = 1;
  std::vector<std::string> axes;
  for (const auto& [axis, size] : job.model->parallel) {
    product *= size;
    axes.push_back(fmt::format("{} {}", axis, size));
    if (product > kNodesMax * kRanksPerNodeMax) break;
  }
  if (product == job.world_size()) return;
  const bool overridden = overrides.nodes || overrides.ranks_per_node;
  top.Wrong("model", fmt::format("parallel {} makes {} ranks, but {} nodes x {} ranks_per_node = "
                                 "{}{}; make them equal",
                                 fmt::join(axes, " x "), product, job.launch.nodes,
                                 job.launch.ranks_per_node, job.world_size(),
                                 overridden ? " (from the command line)" : ""));
}

Status CheckOverride(const char* name, const std::optional<int>& value, std::int64_t least,
                     std::int64_t most) {
  if (!value.has_value() || (*value >= least && *value <= most)) return Ok();
  return Status(Code::kInvalidArgument, fmt::format("--{}: found {}; expected a whole number from "
                                                    "{} to {}",
                                                    name, *value, least, most));
}

}  // namespace

std::string JobFile::DefaultStateDirectory() const {
  return (fs::path(directory) / (name + ".perdure")).string();
}

Result<JobFile> ParseJobFile(const std::string& text, const std::string& path,
                             const JobOverrides& overrides) {
  PERDURE_RETURN_IF_ERROR(CheckOverride("nodes", overrides.nodes, 1, kNodesMax));
  PERDURE_RETURN_IF_ERROR(CheckOverride("spares", overrides.spares, 0, kNodesMax));
  PERDURE_RETURN_IF_ERROR(
      CheckOverride("ranks-per-node", overrides.ranks_per_node, 1, kRanksPerNodeMax));

  JobFile job;
  job.path = path;
  job.directory = fs::path(path).parent_path().string();
  Problems problems{path, Ok(), {}};
  try {
    const YAML::Node document = YAML::Load(text);
    if (!document.IsMap()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{}:1: training_job: is missing; a job file begins with "
                                "training_job:",
                                path));
    }
    Section root(problems, document, "", 1);
    Section top = root.Sub("training_job");
    root.Finish();
    if (problems.first.ok() && !top.present()) {
      problems.Add(1, "training_job", "is missing; a job file begins with training_job:");
    }
    if (const auto name = top.Text("name")) {
      job.name = *name;
      if (!GoodName(*name)) {
        top.Wrong("name",
                  fmt::format("found \"{}\"; expected up to 64 letters, digits, - _ and .", *name));
      }
    } else {
      top.Wrong("name", "is missing; give the job a name");
    }
    if (auto command = top.Texts("command")) {
      job.command = std::move(*command);
      if (job.command[0].find('/') != std::string::npos) {
        job.command[0] = Absolute(job.command[0], job.directory);
      }
    } else {
      top.Wrong("command",
                "is missing; say what each rank runs, as in [build/bin/train, --steps, "
                "\"400\"]");
    }
    ReadModel(top, job);
    ReadLaunch(top, overrides, job);
    ReadCheckpoint(top, job);
    ReadFaultTolerance(top, job);
    ReadObservability(top);
    top.Finish();
    CheckRanks(top, overrides, job);
  } catch (const YAML::Exception& error) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}:{}: not valid YAML: {}", path, error.mark.line + 1, error.msg));
  }
  PERDURE_RETURN_IF_ERROR(problems.first);
  job.notes = std::move(problems.notes);
  PERDURE_RETURN_IF_ERROR(PolicyOf(job).status());
  return job;
}

Result<JobFile> LoadJobFile(const std::string& path, const JobOverrides& overrides) {
  std::error_code error;
  const std::string absolute = fs::absolute(path, error).lexically_normal().string();
  PERDURE_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(error ? path : absolute));
  return ParseJobFile(text, error ? path : absolute, overrides);
}

}  // namespace perdure
