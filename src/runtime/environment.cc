#include "runtime/environment.h"

#include <fmt/format.h>

#include <initializer_list>

#include "base/parse.h"
#include "wire/channel.h"

namespace perdure {
namespace {

// A whole number out of the first of `names` that is set.
Result<std::optional<std::int64_t>> ReadNumber(const ReadVariable& read,
                                               std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const std::optional<std::string> text = read(name);
    if (!text.has_value() || text->empty()) continue;
    const std::optional<std::int64_t> value = ParseInteger(*text);
    if (!value.has_value()) {
      return Status(
          Code::kInvalidArgument,
          fmt::format("environment variable {}=\"{}\" is not a whole number", name, *text));
    }
    return value;
  }
  return std::optional<std::int64_t>();
}

Status ReadRankAndWorld(const ReadVariable& read, Environment& environment) {
  PERDURE_ASSIGN_OR_RETURN(const auto rank,
                           ReadNumber(read, {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}));
  PERDURE_ASSIGN_OR_RETURN(
      const auto world, ReadNumber(read, {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"}));
  PERDURE_ASSIGN_OR_RETURN(
      const auto local,
      ReadNumber(read, {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}));
  if (rank.has_value() != world.has_value()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("environment variable {} is set but {} is not: set both or neither",
                              rank.has_value() ? "RANK" : "WORLD_SIZE",
                              rank.has_value() ? "WORLD_SIZE" : "RANK"));
  }
  if (!rank.has_value()) return Ok();
  if (*world < 1 || *rank < 0 || *rank >= *world) {
    return Status(Code::kInvalidArgument, fmt::format("RANK={} is not in 0..{} (WORLD_SIZE={})",
                                                      *rank, *world - 1, *world));
  }
  environment.rank = Rank(*rank);
  environment.world_size = static_cast<int>(*world);
  environment.local_rank = static_cast<int>(local.value_or(0));
  return Ok();
}

Status ReadCheckpointSettings(const ReadVariable& read, const SessionOptions& options,
                              Environment& environment) {
  CheckpointSettings& checkpoint = environment.checkpoint;
  checkpoint.directory = options.checkpoint_directory.empty()
                             ? read("PERDURE_CHECKPOINT_DIR").value_or("")
                             : options.checkpoint_directory;
  checkpoint.interval_auto = read("PERDURE_CHECKPOINT_INTERVAL").value_or("") == "auto";
  std::optional<std::int64_t> interval;
  if (!checkpoint.interval_auto) {
    PERDURE_ASSIGN_OR_RETURN(interval, ReadNumber(read, {"PERDURE_CHECKPOINT_INTERVAL"}));
  }
  PERDURE_ASSIGN_OR_RETURN(const auto lost,
                           ReadNumber(read, {"PERDURE_CHECKPOINT_MAX_LOST_MINUTES"}));
  checkpoint.max_lost_ms = lost.value_or(0) * 60'000;
  if (checkpoint.max_lost_ms < 0) {
    return Status(Code::kInvalidArgument,
                  fmt::format("PERDURE_CHECKPOINT_MAX_LOST_MINUTES={} is negative; give minutes, "
                              "or 0 for no bound",
                              *lost));
  }
  checkpoint.init_from = read("PERDURE_INIT_FROM").value_or("");
  PERDURE_ASSIGN_OR_RETURN(const auto keep, ReadNumber(read, {"PERDURE_CHECKPOINT_KEEP"}));
  checkpoint.interval_steps =
      options.checkpoint_interval.value_or(interval.value_or(checkpoint.interval_steps));
  checkpoint.keep_last_n = static_cast<int>(keep.value_or(checkpoint.keep_last_n));
  if (checkpoint.interval_steps < 0) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("the checkpoint interval is {} steps; give 0 (only on request) or more",
                    checkpoint.interval_steps));
  }
  if (checkpoint.keep_last_n < 2) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("PERDURE_CHECKPOINT_KEEP={}: with one copy there is nothing to fall back "
                    "to; give 2 or more",
                    checkpoint.keep_last_n));
  }
  PERDURE_ASSIGN_OR_RETURN(const auto staging,
                           ReadNumber(read, {"PERDURE_CHECKPOINT_STAGING_BYTES"}));
  checkpoint.staging_bytes_max = staging.value_or(0);
  if (checkpoint.staging_bytes_max < 0) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("PERDURE_CHECKPOINT_STAGING_BYTES={} is negative; give the bytes that "
                    "copies of the state may take, or 0 for no limit",
                    checkpoint.staging_bytes_max));
  }
  const std::string when_busy = read("PERDURE_CHECKPOINT_WHEN_BUSY").value_or("wait");
  if (when_busy == "wait") {
    checkpoint.when_busy = SaveWhenBusy::kWait;
  } else if (when_busy == "skip") {
    checkpoint.when_busy = SaveWhenBusy::kSkip;
  } else if (when_busy == "queue") {
    checkpoint.when_busy = SaveWhenBusy::kQueue;
  } else {
    return Status(
        Code::kInvalidArgument,
        fmt::format("PERDURE_CHECKPOINT_WHEN_BUSY=\"{}\" is none of wait, skip, queue", when_busy));
  }
  PERDURE_ASSIGN_OR_RETURN(const auto every, ReadNumber(read, {"PERDURE_CHECKPOINT_KEEP_EVERY"}));
  checkpoint.keep_every_steps = every.value_or(0);
  if (checkpoint.keep_every_steps < 0) {
    return Status(Code::kInvalidArgument,
                  fmt::format("PERDURE_CHECKPOINT_KEEP_EVERY={}: give a number of steps, or 0 for "
                              "none",
                              checkpoint.keep_every_steps));
  }
  const std::string resume = read("PERDURE_RESUME").value_or("auto");
  if (resume == "auto") {
    environment.resume = ResumeMode::kAuto;
  } else if (resume == "require") {
    environment.resume = ResumeMode::kRequire;
  } else if (resume == "never") {
    environment.resume = ResumeMode::kNever;
  } else {
    return Status(Code::kInvalidArgument,
                  fmt::format("PERDURE_RESUME=\"{}\" is none of auto, require, never", resume));
  }
  return Ok();
}

}  // namespace

Result<Environment> ReadEnvironment(const ReadVariable& read, const SessionOptions& options) {
  Environment environment;
  environment.job = options.job.empty() ? read("PERDURE_JOB").value_or("job") : options.job;
  PERDURE_RETURN_IF_ERROR(ReadRankAndWorld(read, environment));
  PERDURE_RETURN_IF_ERROR(ReadCheckpointSettings(read, options, environment));

  if (const auto agent = read("PERDURE_AGENT"); agent.has_value() && !agent->empty()) {
    PERDURE_ASSIGN_OR_RETURN(const auto generation, ReadNumber(read, {"PERDURE_GENERATION"}));
    if (!generation.has_value() || *generation < 1 || !read("RANK").has_value()) {
      return Status(
          Code::kInvalidArgument,
          "PERDURE_AGENT is set, but PERDURE_GENERATION or RANK is not: start this program "
          "with `perdure run`, or unset PERDURE_AGENT to run it on its own");
    }
    environment.start = Environment::Start::kSupervised;
    environment.agent_address = *agent;
    environment.agent_token = read("PERDURE_RANK_TOKEN").value_or("");
    environment.generation = Generation(*generation);
    return environment;
  }

  if (environment.world_size == 1) {
    environment.start = Environment::Start::kAlone;
    return environment;
  }

  environment.start = Environment::Start::kLaunched;
  environment.store_host = read("MASTER_ADDR").value_or("");
  PERDURE_ASSIGN_OR_RETURN(const auto port, ReadNumber(read, {"MASTER_PORT"}));
  if (environment.store_host.empty() || !port.has_value() || *port < 1 || *port > 65534) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("WORLD_SIZE={} needs MASTER_ADDR and MASTER_PORT (1..65534), where rank 0 "
                    "hosts the control store",
                    environment.world_size));
  }
  if (const Status local =
          wire::CheckLocalAddress(fmt::format("{}:{}", environment.store_host, *port));
      !local.ok()) {
    return Status(local.code(), fmt::format("MASTER_ADDR={}: the control store of rank 0 has no "
                                            "TLS yet, so all ranks must be on one machine: use "
                                            "127.0.0.1",
                                            environment.store_host));
  }
  // torchrun's agent may already listen at MASTER_PORT with its own store; ours then takes the next
  // one.
  const bool taken = read("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  environment.store_port = static_cast<int>(*port) + (taken ? 1 : 0);
  PERDURE_ASSIGN_OR_RETURN(const auto restarts, ReadNumber(read, {"TORCHELASTIC_RESTART_COUNT"}));
  environment.restart_count = restarts.value_or(0);
  return environment;
}

}  // namespace perdure
