// How agents and the supervisor speak. The real ones are gRPC streams (wire); tests have both ends
// in memory.
//
// An agent's events are numbered and sent again after each reconnect until they are acknowledged,
// which happens after they are journalled. Reports are not numbered: the next one replaces them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "control/link.h"
#include "control/messages.h"

namespace perdure {

using AgentEvent =
    std::variant<RankExited, RankStartFailed, GenerationEnded, Evidence, FromRank<StoreReady>,
                 FromRank<RestoreDone>, FromRank<CheckpointCommitted>, FromRank<CheckpointFailed>,
                 FromRank<CheckpointSkipped>, FromRank<CommFailed>, FromRank<RankLeaving>>;

struct NumberedEvent {
  std::uint64_t number = 0;  // from 1, per incarnation of the agent
  AgentEvent event;
};

using AgentMessage = std::variant<NodeReport, NumberedEvent>;

// Events of the stream's agent up to this number are journalled.
struct Acknowledge {
  std::uint64_t up_to = 0;
};

// To be handed to ranks of a generation on this node.
struct ToRanks {
  Generation generation;
  std::variant<StoreAddress, PeerDead, CheckpointNow, DumpRequest> command;
};

using SupervisorCommand = std::variant<StartRanks, StopGeneration, FenceGeneration, CollectEvidence,
                                       SignalRank, ToRanks, Acknowledge, Shutdown>;

// The supervisor's side: who is connected, and what they say. One connection per node name; a new
// one replaces the old.
class AgentPort {
 public:
  struct Handler {
    // An agent dials. An error is its answer, and the stream is closed.
    std::function<Result<SupervisorHello>(const AgentHello&)> on_hello;
    std::function<void(const std::string& node, const AgentMessage&)> on_message;
    std::function<void(const std::string& node)> on_disconnected;
  };

  virtual ~AgentPort() = default;
  // The handler is called from the port's threads, until Close returns.
  virtual Status Open(Handler handler) = 0;
  // Never blocks; false when the node is not connected or its queue is full.
  virtual bool Send(const std::string& node, const SupervisorCommand& command) = 0;
  virtual void Close(Deadline deadline) = 0;
};

// The agent's side: dials, and dials again with backoff when the stream breaks.
class SupervisorPort {
 public:
  struct Handler {
    // Asked before each (re)connection, so that `running` is true at that moment.
    std::function<AgentHello()> hello;
    std::function<void(const SupervisorHello&)> on_connected;
    std::function<void(const SupervisorCommand&)> on_command;
    // The supervisor answered the hello with an error (fenced, wrong job, wrong token): not
    // retried.
    std::function<void(const Status&)> on_refused;
    std::function<void()> on_disconnected;
  };

  virtual ~SupervisorPort() = default;
  virtual Status Open(Handler handler) = 0;
  // Never blocks; false when not connected (the caller keeps numbered events until acknowledged).
  virtual bool Send(const AgentMessage& message) = 0;
  virtual void Close(Deadline deadline) = 0;
};

// The agent's side toward its ranks: a server on a unix socket. A connection is known by
// (generation, rank).
class RankPort {
 public:
  struct Handler {
    // A rank says hello; an error is its answer (kFenced for another generation).
    std::function<Result<RankWelcome>(const RankHello&)> on_hello;
    std::function<void(Generation, Rank, const RankMessage&)> on_message;
    std::function<void(Generation, Rank)> on_disconnected;
  };

  virtual ~RankPort() = default;
  virtual Status Open(Handler handler) = 0;
  virtual bool Send(Generation generation, Rank rank, const RankCommand& command) = 0;
  virtual void Close(Deadline deadline) = 0;
};

}  // namespace perdure
