// From the few numbers of the job file to every deadline of the job.
//
// heartbeat_timeout_s, when it is given, is the ceiling of each phase deadline that is not, and all
// other waits shrink with it, so that the inequalities of core/policy.h hold by construction:
//   suspected  = min(10 s, H/2)     node silent = min(10 s, H)     lease = min(600 s, max(30 s, 4
//   H)) step       = max(5 x median, 180 s), at most H collective = min(120 s, shortest step
//   deadline / 2) evidence   = min(10 s, shortest step deadline / 5)
#include <fmt/format.h>

#include <algorithm>

#include "supervisor/job/job_file.h"

namespace perdure {
namespace {

Duration FromSeconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Result<core::Policy> PolicyOf(const JobFile& job) {
  const JobFile::FaultTolerance& tolerance = job.fault_tolerance;
  core::Policy policy;
  policy.job = job.name;
  policy.job_file = job.path;
  policy.nodes = job.launch.nodes;
  policy.spares = job.launch.spares;
  policy.ranks_per_node = job.launch.ranks_per_node;
  policy.checkpoints = job.checkpoint.has_value();
  policy.command = job.command;
  policy.env = job.launch.env;
  policy.working_directory = job.directory;
  if (job.checkpoint) {
    policy.resume = job.checkpoint->resume;
    policy.checkpoint_settings.directory = job.checkpoint->directory;
    policy.checkpoint_settings.interval_steps = job.checkpoint->interval_steps.value_or(0);
    policy.checkpoint_settings.interval_auto = job.checkpoint->interval_auto;
    policy.checkpoint_settings.max_lost_ms =
        static_cast<std::int64_t>(job.checkpoint->max_lost_minutes.value_or(0) * 60'000);
    policy.checkpoint_settings.init_from = job.checkpoint->init_from;
    policy.checkpoint_settings.init_names = job.checkpoint->init_names;
    policy.checkpoint_settings.async_save = job.checkpoint->async_save;
    policy.checkpoint_settings.keep_last_n = job.checkpoint->keep_last_n;
    policy.checkpoint_settings.keep_every_steps = job.checkpoint->keep_every_steps;
    policy.checkpoint_settings.stop_after = job.checkpoint->stop_after;
    policy.checkpoint_settings.staging_bytes_max = job.checkpoint->staging_bytes_max;
    policy.checkpoint_settings.when_busy = job.checkpoint->when_busy;
  }

  if (tolerance.heartbeat_timeout_s) {
    const Duration ceiling = FromSeconds(*tolerance.heartbeat_timeout_s);
    policy.init = std::min(policy.init, ceiling);
    policy.restore = std::min(policy.restore, ceiling);
    policy.checkpoint = std::min(policy.checkpoint, ceiling);
    policy.other_phase = ceiling;
    policy.step_ceiling = ceiling;
    policy.step_floor = std::min(policy.step_floor, ceiling);
    policy.suspected = std::min(policy.suspected, ceiling / 2);
    policy.node_silent = std::min(policy.node_silent, ceiling);
    policy.lease =
        std::min(policy.lease, std::max<Duration>(std::chrono::seconds(30), 4 * ceiling));
    policy.agents_awaited = std::min(policy.agents_awaited, 2 * ceiling);
  }
  if (tolerance.init_s) policy.init = FromSeconds(*tolerance.init_s);
  if (tolerance.restore_s) policy.restore = FromSeconds(*tolerance.restore_s);
  if (tolerance.checkpoint_s) policy.checkpoint = FromSeconds(*tolerance.checkpoint_s);
  if (tolerance.step_s) policy.step_given = FromSeconds(*tolerance.step_s);
  const Duration step_least = policy.step_given.value_or(policy.step_floor);
  policy.collective = std::min(policy.collective, step_least / 2);
  policy.evidence = std::min(policy.evidence, step_least / 5);
  if (tolerance.stop_grace_s) policy.stop_grace = FromSeconds(*tolerance.stop_grace_s);
  if (tolerance.preemption_grace_s) {
    policy.preemption_grace = FromSeconds(*tolerance.preemption_grace_s);
  }

  policy.max_auto_restart = tolerance.max_auto_restart;
  policy.refill_after = FromSeconds(tolerance.refill_after_s);
  policy.max_no_progress_restarts = tolerance.max_no_progress_restarts;
  policy.auto_isolate_bad_node = tolerance.auto_isolate_bad_node;
  if (const Status status = CheckPolicy(policy); !status.ok()) {
    return Status(status.code(),
                  fmt::format("{}: fault_tolerance: {}", job.path, status.message()));
  }
  return policy;
}

}  // namespace perdure
