#include "supervisor/job/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "support/temp_dir.h"

namespace perdure {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr char kWhole[] = R"(training_job:
  name: gpt-tiny
  command: [build/bin/train_gpt, --steps, "400"]
  model: {params: 0.8M, dtype: fp32, parallel: {tp: 1, pp: 1, dp: 4}}
  launch: {launcher: local, nodes: 2, spares: 1, ranks_per_node: 2, env: {OMP_NUM_THREADS: "1"}}
  checkpoint:
    directory: checkpoints
    interval_steps: 20
    async_save: true
    keep_last_n: 3
    resume: auto
    on_failure: {tell: always, stop_after: 3}
  fault_tolerance:
    heartbeat_timeout_s: 300
    deadlines: {init: 900, restore: 900, checkpoint: 300, step: learned}
    stop_grace_s: 15
    preemption_grace_s: 120
    auto_isolate_bad_node: true
    max_auto_restart: 50
    refill_after_s: 86400
    max_no_progress_restarts: 3
  observability:
    metrics: [throughput, mfu, loss, grad_norm, step_time_p99]
    alert_on: {mfu_drop_pct: 15, step_time_p99_growth_pct: 30}
)";

// The whole file with one line replaced, or added after `training_job:`.
std::string With(const std::string& from, const std::string& to) {
  std::string text = kWhole;
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string ErrorOf(const std::string& text, const JobOverrides& overrides = {}) {
  const Result<JobFile> job = ParseJobFile(text, "/jobs/job.yaml", overrides);
  EXPECT_FALSE(job.ok());
  return job.ok() ? "" : job.status().message();
}

TEST(JobFile, ReadsTheWholeOfIt) {
  const Result<JobFile> job = ParseJobFile(kWhole, "/jobs/job.yaml");
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_EQ(job->name, "gpt-tiny");
  EXPECT_EQ(job->command[0], "/jobs/build/bin/train_gpt");
  EXPECT_EQ(job->command[2], "400");
  EXPECT_EQ(job->world_size(), 4);
  EXPECT_EQ(job->launch.env.at("OMP_NUM_THREADS"), "1");
  EXPECT_EQ(job->checkpoint->directory, "/jobs/checkpoints");
  EXPECT_EQ(job->checkpoint->interval_steps, 20);
  EXPECT_EQ(job->DefaultStateDirectory(), "/jobs/gpt-tiny.perdure");
  ASSERT_EQ(job->notes.size(), 2u);
  EXPECT_THAT(job->notes[0], HasSubstr("observability.metrics: is planned and not there yet"));
}

TEST(JobFile, HowCopiesAreMade) {
  const Result<JobFile> job =
      ParseJobFile(With("async_save: true", "staging_bytes_max: 8000000000\n    when_busy: queue"),
                   "/jobs/job.yaml", {});
  ASSERT_TRUE(job.ok()) << job.status().message();
  const CheckpointSettings settings = PolicyOf(*job)->checkpoint_settings;
  EXPECT_EQ(settings.staging_bytes_max, 8'000'000'000);
  EXPECT_EQ(settings.when_busy, SaveWhenBusy::kQueue);
}

TEST(JobFile, AnIntervalThatIsChosen) {
  const auto settings = [](const char* words) {
    const Result<JobFile> job = ParseJobFile(With("interval_steps: 20", words), "/jobs/job.yaml");
    EXPECT_TRUE(job.ok()) << job.status().message();
    return job.ok() ? PolicyOf(*job)->checkpoint_settings : CheckpointSettings();
  };
  EXPECT_EQ(settings("max_lost_minutes: 2.5").max_lost_ms, 150'000);
  EXPECT_FALSE(settings("max_lost_minutes: 2.5").interval_auto);
  EXPECT_TRUE(settings("interval: auto").interval_auto);
  const CheckpointSettings both = settings("interval: auto\n    max_lost_minutes: 10");
  EXPECT_TRUE(both.interval_auto);
  EXPECT_EQ(both.max_lost_ms, 600'000);
  EXPECT_EQ(both.interval_steps, 0);
}

TEST(JobFile, ANewRunFromForeignFiles) {
  const Result<JobFile> job =
      ParseJobFile(With("async_save: true",
                        "init_from: gpt2\n    init_names: {model.: transformer., model.b: \"\"}"),
                   "/jobs/job.yaml");
  ASSERT_TRUE(job.ok()) << job.status().message();
  const CheckpointSettings settings = PolicyOf(*job)->checkpoint_settings;
  EXPECT_EQ(settings.init_from, "/jobs/gpt2");
  EXPECT_EQ(settings.init_names,
            (std::map<std::string, std::string>{{"model.", "transformer."}, {"model.b", ""}}));
}

TEST(JobFile, OverridesFromTheCommandLine) {
  JobOverrides overrides;
  overrides.spares = 0;
  ASSERT_TRUE(ParseJobFile(kWhole, "/jobs/job.yaml", overrides).ok());
  overrides.nodes = 4;
  EXPECT_THAT(ErrorOf(kWhole, overrides),
              HasSubstr("tp 1 x pp 1 x dp 4 makes 4 ranks, but 4 nodes x 2 ranks_per_node = 8 "
                        "(from the command line)"));
  overrides.nodes = 0;
  EXPECT_THAT(ErrorOf(kWhole, overrides), HasSubstr("--nodes: found 0"));
}

struct Bad {
  const char* from;
  const char* to;
  const char* message;
};

class JobFileErrors : public testing::TestWithParam<Bad> {};

TEST_P(JobFileErrors, OneLineThatNamesTheThingAndTheFix) {
  const std::string message = ErrorOf(With(GetParam().from, GetParam().to));
  EXPECT_THAT(message, StartsWith("/jobs/job.yaml:"));
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_EQ(message.find('\n'), std::string::npos) << "one line";
}

INSTANTIATE_TEST_SUITE_P(
    All, JobFileErrors,
    testing::Values(
        Bad{"keep_last_n: 3", "keep_last: 3",
            ":10: checkpoint.keep_last: unknown key; did you mean keep_last_n?"},
        Bad{"name: gpt-tiny", "nam: gpt-tiny", "name: is missing"},
        Bad{"nodes: 2", "nodes: two",
            ":5: launch.nodes: found \"two\"; expected a whole number from 1 to 100000"},
        Bad{"nodes: 2", "nodes: 0", "launch.nodes: found \"0\""},
        Bad{"nodes: 2", "nodes: [2]", "launch.nodes: found a list"},
        Bad{"keep_last_n: 3", "keep_last_n: 1", "with one copy there is nothing to fall back to"},
        Bad{"dp: 4", "dp: 8", "makes 8 ranks, but 2 nodes x 2 ranks_per_node = 4"},
        Bad{"dp: 4", "dp: four", "axis dp has \"four\""},
        Bad{"resume: auto", "resume: autom",
            "found \"autom\"; expected one of require, auto, never (did you mean auto?)"},
        Bad{"async_save: true", "max_lost_minutes: 5",
            "checkpoint.interval_steps: is given beside max_lost_minutes; use one"},
        Bad{"async_save: true", "interval: auto", "is given beside interval: auto; use one"},
        Bad{"async_save: true", "init_names: {model.: \"\"}",
            "checkpoint.init_names: is of no use without init_from"},
        Bad{"interval_steps: 20", "interval: often", "found \"often\"; expected one of auto"},
        Bad{"interval_steps: 20", "max_lost_minutes: 0",
            "checkpoint.max_lost_minutes: found \"0\"; expected minutes from 0.1 to 10080"},
        Bad{"launcher: local", "launcher: slurm", "slurm is planned and not there yet; use local"},
        Bad{"async_save: true", "async_save: 7", "expected true or false"},
        Bad{"async_save: true", "when_busy: skipp", "expected one of wait, skip, queue"},
        Bad{"async_save: true", "staging_bytes_max: 0", "staging_bytes_max: found \"0\""},
        Bad{"directory: checkpoints", "directory: \"\"", "checkpoint.directory: is empty"},
        Bad{"heartbeat_timeout_s: 300", "heartbeat_timeout_s: 1",
            "heartbeat_timeout_s: found \"1\"; expected seconds from 4"},
        Bad{"init: 900", "init: soon", "fault_tolerance.deadlines.init: found \"soon\""},
        Bad{"init: 900, restore: 900, checkpoint: 300, step: learned", "init: 10, step: 60",
            "init: 10 s contradicts step: 60 s"},
        Bad{"step: learned", "step: guessed", "the word learned, or seconds"},
        Bad{"max_auto_restart: 50", "max_auto_restart: -1", "max_auto_restart: found \"-1\""},
        Bad{"name: gpt-tiny", "name: \"../up\"", "name: found \"../up\""},
        Bad{"command: [build/bin/train_gpt, --steps, \"400\"]", "command: train",
            "command: found \"train\"; expected a list of texts"},
        Bad{"    keep_last_n: 3\n", "    keep_last_n: 3\n    keep_last_n: 4\n",
            ":11: checkpoint.keep_last_n: is given twice; the first is in line 10"},
        Bad{"training_job:", "trainingjob:",
            ":1: trainingjob: unknown key; did you mean training_job"},
        Bad{"stop_grace_s: 15", "stop_grace_s: [", "not valid YAML"}));

TEST(JobFile, EmptyAndForeignTexts) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("a job file begins with training_job:"));
  EXPECT_THAT(ErrorOf("- 1\n"), HasSubstr("a job file begins with training_job:"));
  EXPECT_FALSE(LoadJobFile("/nowhere/job.yaml").ok());
}

TEST(Patience, ShrinksTogetherWithOneValue) {
  for (const char* seconds : {"4", "5", "10", "30", "60", "300", "3600"}) {
    const Result<JobFile> job = ParseJobFile(
        "training_job:\n  name: x\n  command: [true]\n  fault_tolerance: "
        "{heartbeat_timeout_s: " +
            std::string(seconds) + "}\n",
        "/jobs/job.yaml");
    ASSERT_TRUE(job.ok()) << job.status().message();
    const Result<core::Policy> policy = PolicyOf(*job);
    ASSERT_TRUE(policy.ok()) << seconds << ": " << policy.status().message();
    EXPECT_TRUE(core::CheckPolicy(*policy).ok());
    EXPECT_LE(policy->step_ceiling, std::chrono::seconds(std::stoi(seconds)));
    EXPECT_LE(policy->init, std::chrono::seconds(std::stoi(seconds)));
  }
}

TEST(Patience, DefaultsAreThoseOfTheTable) {
  const Result<JobFile> job =
      ParseJobFile("training_job:\n  name: x\n  command: [true]\n", "/jobs/job.yaml");
  ASSERT_TRUE(job.ok()) << job.status().message();
  const Result<core::Policy> policy = PolicyOf(*job);
  ASSERT_TRUE(policy.ok());
  EXPECT_EQ(policy->init, std::chrono::seconds(900));
  EXPECT_EQ(policy->collective, std::chrono::seconds(90));
  EXPECT_EQ(policy->suspected, std::chrono::seconds(10));
  EXPECT_EQ(policy->lease, std::chrono::seconds(600));
}

TEST(Patience, AGivenDeadlineStandsAboveTheCeiling) {
  const Result<JobFile> job = ParseJobFile(
      "training_job:\n  name: x\n  command: [true]\n  fault_tolerance:\n    heartbeat_timeout_s: "
      "10\n    deadlines: {init: 60}\n",
      "/jobs/job.yaml");
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_EQ(PolicyOf(*job)->init, std::chrono::seconds(60));
  EXPECT_EQ(PolicyOf(*job)->restore, std::chrono::seconds(10));
}

JobFile At(const TempDir& directory) {
  JobFile job;
  job.path = directory / "job.yaml";
  job.directory = directory.path();
  job.name = "x";
  job.command = {"sh"};
  return job;
}

TEST(CheckJobFile, CommandFoundOrNamed) {
  const TempDir directory;
  JobFile job = At(directory);
  EXPECT_TRUE(CheckJobFile(job).ok());
  job.command[0] = "no-such-program-anywhere";
  EXPECT_THAT(CheckJobFile(job).message(),
              HasSubstr("command: no-such-program-anywhere is in no directory of PATH"));
  job.command[0] = directory / "train";
  EXPECT_THAT(CheckJobFile(job).message(), HasSubstr("train does not exist"));
  std::ofstream(job.command[0]) << "#!/bin/sh\n";
  EXPECT_THAT(CheckJobFile(job).message(), HasSubstr("is not executable (chmod +x it)"));
  ASSERT_EQ(::chmod(job.command[0].c_str(), 0755), 0);
  EXPECT_TRUE(CheckJobFile(job).ok());
  job.command[0] = directory.path();
  EXPECT_THAT(CheckJobFile(job).message(), HasSubstr("is a directory"));
}

TEST(CheckJobFile, CheckpointDirectoryIsMadeOrNamed) {
  const TempDir directory;
  JobFile job = At(directory);
  job.checkpoint = JobFile::Checkpoint();
  job.checkpoint->directory = directory / "deep/er";
  EXPECT_TRUE(CheckJobFile(job).ok());
  EXPECT_TRUE(std::filesystem::is_empty(job.checkpoint->directory)) << "the probe is gone";
  std::ofstream(directory / "file") << "x";
  job.checkpoint->directory = directory / "file/inside";
  EXPECT_THAT(CheckJobFile(job).message(), HasSubstr("checkpoint.directory: cannot be written"));
}

}  // namespace
}  // namespace perdure
