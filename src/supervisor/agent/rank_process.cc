#include "supervisor/agent/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "supervisor/agent/process_tree.h"
#include "supervisor/agent/rank_log.h"
#include "supervisor/agent/spawn.h"
#include "supervisor/agent/stub.h"

namespace perdure::agent {

std::map<std::string, std::string> RankEnvironment(const RankSurroundings& around,
                                                   const StartRanks& start, const StartRank& rank,
                                                   const std::string& token) {
  std::map<std::string, std::string> env = start.env;
  const std::pair<std::string, std::string> ours[] = {
      {"RANK", ToString(rank.rank)},
      {"WORLD_SIZE", std::to_string(start.world_size)},
      {"LOCAL_RANK", std::to_string(rank.local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(start.local_world_size)},
      {"GROUP_RANK", std::to_string(start.group_rank)},
      {"MASTER_ADDR", start.master_addr},
      {"MASTER_PORT", std::to_string(start.master_port)},
      {"PERDURE_JOB", around.job},
      {"PERDURE_GENERATION", ToString(start.generation)},
      {"PERDURE_NODE", around.node},
      {"PERDURE_AGENT", around.rank_address},
      {"PERDURE_RANK_TOKEN", token},
      {"PERDURE_CHECKPOINT_DIR", start.welcome.checkpoint.directory},
      {"PERDURE_RESTART_COUNT", std::to_string(start.restart_count)},
      {kMarkerVariable, fmt::format("{}g{}", NodeMarker(around.state_directory, around.node),
                                    start.generation.value())},
  };
  for (const auto& [name, value] : ours) env[name] = value;
  if (around.job.empty()) env.erase("PERDURE_JOB");
  return env;
}

Result<RankProcess> StartRankProcess(const RankSurroundings& around, const StartRanks& start,
                                     const StartRank& rank, const std::string& token,
                                     MonotonicTime now) {
  if (start.command.empty()) return Status(Code::kInvalidArgument, "the job's command is empty");
  RankProcess process;
  process.key = {start.generation, rank.rank};
  process.log_path = RankLogPath(around.state_directory, start.generation, rank.rank);
  process.started = now;
  PERDURE_ASSIGN_OR_RETURN(const UniqueFd log, OpenRankLog(process.log_path));

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "making a pipe");
  process.status.Reset(ends[0]);
  const UniqueFd status_of_stub(ends[1]);

  SpawnRequest spawn;
  spawn.words = {"_rank"};
  for (std::string& word : ToWords({::getpid(), start.working_directory, start.command})) {
    spawn.words.push_back(std::move(word));
  }
  spawn.environment = EnvironmentWith(RankEnvironment(around, start, rank, token));
  spawn.output_fd = log.get();
  spawn.status_fd = status_of_stub.get();
  PERDURE_ASSIGN_OR_RETURN(const pid_t pid, SpawnSelf(spawn));

  // Our own child cannot vanish before we wait for it: both succeed unless descriptors run out.
  PERDURE_ASSIGN_OR_RETURN(process.pidfd, OpenPidFd(pid));
  const std::optional<ProcessStat> root = ReadStat(pid);
  if (!root.has_value())
    return Status(Code::kUnavailable, "the new process cannot be seen in /proc");
  process.root = *root;
  return process;
}

AgentEvent DescribeEnd(const RankProcess& process) {
  char text[4096];
  const ssize_t got = ::read(process.status.get(), text, sizeof(text));
  if (got > 0) {
    return RankStartFailed{process.generation(), process.rank(),
                           std::string(text, static_cast<std::size_t>(got))};
  }
  RankExited exited;
  exited.generation = process.generation();
  exited.rank = process.rank();
  const int status = *process.wait_status;
  if (WIFSIGNALED(status)) {
    exited.signal = WTERMSIG(status);
  } else {
    exited.exit_code = WEXITSTATUS(status);
  }
  exited.leaving = process.leaving;
  exited.lifetime_seconds = Seconds(process.ended - process.started);
  if (exited.exit_code != 0) exited.last_error_line = LastErrorLine(process.log_path);
  return exited;
}

}  // namespace perdure::agent
