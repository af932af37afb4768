// The stream between an agent and the supervisor: gRPC over loopback.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "control/agent_link.h"
#include "control/job_control.h"

namespace perdure::wire {

// The supervisor's end; also serves the command line's questions on the same address.
class GrpcAgentPort : public AgentPort {
 public:
  struct Options {
    std::string listen = "127.0.0.1:0";  // HOST:PORT; port 0: the system chooses
    std::string token;                   // what agents and the command line must show; empty: any
    // Called by Open when the port listens, with the address to dial. An error stops Open.
    std::function<Status(const std::string& address)> on_listening;
  };

  explicit GrpcAgentPort(Options options);
  ~GrpcAgentPort() override;

  // Who answers the command line; outlives the port. Before Open; without it the calls are refused.
  void ServeControl(JobControl& control);

  Status Open(Handler handler) override;
  bool Send(const std::string& node, const SupervisorCommand& command) override;
  void Close(Deadline deadline) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The agent's end. One thread dials, waits for the end of the stream, and dials again with backoff.
class GrpcSupervisorPort : public SupervisorPort {
 public:
  // `address` is asked before each dial: a restarted supervisor may listen elsewhere.
  explicit GrpcSupervisorPort(std::function<Result<std::string>()> address);
  ~GrpcSupervisorPort() override;

  Status Open(Handler handler) override;
  bool Send(const AgentMessage& message) override;
  void Close(Deadline deadline) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perdure::wire
