// The stream between a rank and its agent: gRPC over a unix socket.
#pragma once

#include <memory>
#include <string>

#include "control/agent_link.h"

namespace perdure::wire {

// The agent's end. The address is an abstract unix socket: it has no length limit worth knowing,
// leaves nothing behind, and is of this machine only; the token in each hello keeps other users
// out.
class GrpcRankPort : public RankPort {
 public:
  GrpcRankPort();
  ~GrpcRankPort() override;

  Status Open(Handler handler) override;
  bool Send(Generation generation, Rank rank, const RankCommand& command) override;
  void Close(Deadline deadline) override;

  // For PERDURE_AGENT. From construction on.
  const std::string& address() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The rank's end. A broken stream means that the agent is gone: it is not dialled again.
class GrpcSupervisorLink : public SupervisorLink {
 public:
  // `address` is PERDURE_AGENT.
  explicit GrpcSupervisorLink(std::string address);
  ~GrpcSupervisorLink() override;

  Result<RankWelcome> Open(const RankHello& hello,
                           std::function<void(const RankCommand&)> on_command,
                           std::function<void()> on_lost, Deadline deadline) override;
  Status Send(const RankMessage& message) override;
  void Close(Deadline deadline) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perdure::wire
