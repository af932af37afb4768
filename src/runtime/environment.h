// Who this process is, read from its environment. Pure: the variables come in as a map.
//
// Three ways to be started:
//   supervised  PERDURE_AGENT is set: rank, world and generation come from the supervisor's agent.
//   launched    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set as torchrun sets them (or the
//   variables
//               of mpirun or srun are there); rank 0 hosts the control store at that address.
//   alone       none of these: one rank, generation from the checkpoint directory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "control/messages.h"
#include "perdure/session.h"
#include "perdure/status.h"

namespace perdure {

struct Environment {
  enum class Start : std::uint8_t { kSupervised, kLaunched, kAlone };

  Start start = Start::kAlone;
  std::string job = "job";
  Rank rank{0};
  int world_size = 1;
  int local_rank = 0;

  // Supervised.
  std::string agent_address;
  std::string agent_token;
  Generation generation{0};

  // Launched: where rank 0 hosts the control store, and the number that keeps the processes of an
  // earlier launch away from it.
  std::string store_host;
  int store_port = 0;
  std::int64_t restart_count = 0;

  CheckpointSettings checkpoint;
  ResumeMode resume = ResumeMode::kAuto;
};

// Reads a variable; nullopt when it is unset.
using ReadVariable = std::function<std::optional<std::string>(const std::string&)>;

// An error names the variable, what it holds and what it should.
Result<Environment> ReadEnvironment(const ReadVariable& read, const SessionOptions& options);

}  // namespace perdure
