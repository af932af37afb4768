// The plain structs of control as protobuf messages, and back. Nothing outside wire sees a protobuf
// type.
//
// Reading is tolerant where a newer peer may say more than we know (unknown fields are skipped) and
// strict where a message has no meaning without its part: an envelope without content is
// kInvalidArgument. Durations travel in whole milliseconds.
#pragma once

#include "control/agent_link.h"
#include "control/job_control.h"
#include "control/link.h"
#include "perdure/v1/agent.pb.h"
#include "perdure/v1/rank.pb.h"
#include "perdure/v1/supervisor.pb.h"

namespace perdure::wire {

// Rank -> agent.
v1::RankToAgent ToProto(const RankHello& hello);
v1::RankToAgent ToProto(const RankMessage& message);
RankHello FromProto(const v1::RankHello& hello);
Result<RankMessage> FromProto(const v1::RankToAgent& envelope);

// Agent -> rank.
v1::AgentToRank ToProto(const RankWelcome& welcome);
v1::AgentToRank ToProto(const RankCommand& command);
RankWelcome FromProto(const v1::RankWelcome& welcome);
Result<RankCommand> FromProto(const v1::AgentToRank& envelope);

// Agent -> supervisor.
v1::AgentToSupervisor ToProto(const AgentHello& hello);
v1::AgentToSupervisor ToProto(const AgentMessage& message);
AgentHello FromProto(const v1::AgentHello& hello);
Result<AgentMessage> FromProto(const v1::AgentToSupervisor& envelope);

// Supervisor -> agent.
v1::SupervisorToAgent ToProto(const SupervisorHello& hello);
v1::SupervisorToAgent ToProto(const SupervisorCommand& command);
SupervisorHello FromProto(const v1::SupervisorHello& hello);
Result<SupervisorCommand> FromProto(const v1::SupervisorToAgent& envelope);

// Command line -> supervisor.
v1::ChaosRequest ToProto(const ChaosRequest& request);
Result<ChaosRequest> FromProto(const v1::ChaosRequest& request);

// The parts that both streams carry.
void Fill(const RankReport& from, v1::RankReport* to);
void Fill(const RestoreDone& from, v1::RestoreDone* to);
void Fill(const CheckpointCommitted& from, v1::CheckpointCommitted* to);
void Fill(const CheckpointFailed& from, v1::CheckpointFailed* to);
void Fill(const CheckpointSkipped& from, v1::CheckpointSkipped* to);
void Fill(const CommFailed& from, v1::CommFailed* to);
void Fill(const RankLeaving& from, v1::RankLeaving* to);
void Fill(const RankWelcome& from, v1::RankWelcome* to);
RankReport FromProto(const v1::RankReport& from);
RestoreDone FromProto(const v1::RestoreDone& from);
CheckpointCommitted FromProto(const v1::CheckpointCommitted& from);
CheckpointFailed FromProto(const v1::CheckpointFailed& from);
CheckpointSkipped FromProto(const v1::CheckpointSkipped& from);
CommFailed FromProto(const v1::CommFailed& from);
RankLeaving FromProto(const v1::RankLeaving& from);

inline std::int64_t ToMs(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}
inline Duration FromMs(std::int64_t ms) {
  return std::chrono::milliseconds(ms);
}

// std::visit with one lambda per alternative.
template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace perdure::wire
