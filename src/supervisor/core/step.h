// The decision core: hears an event, changes the state, says what to do and why.
//
//   Decision Step(const Policy&, State&, const Event&)
//
// Pure: no clock, no thread, no socket, no disk; the same events give the same state. The shell
// journals an event and its decision first and performs the effects afterwards (SUP-2). Every
// effect is idempotent, and what a restarted supervisor cannot know to have been done is sent again
// when the agents say hello: a half-done decision is finished, not repeated.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "control/agent_link.h"
#include "supervisor/core/event.h"
#include "supervisor/core/policy.h"
#include "supervisor/core/state.h"

namespace perdure::core {

struct SendToNode {
  std::string node;
  SupervisorCommand command;
};

// A fault drill on an agent of this machine, or on the supervisor itself.
struct SignalAgent {
  std::string node;
  std::int64_t pid = 0;
  int signal = 0;
};
struct SignalSelf {
  int signal = 0;
};

// Read the claims of the checkpoint root again; answered by ClaimsSeen.
struct ReadClaims {};

// Tell the agents that the job is over, wait for them a while, leave.
struct FinishJob {
  int exit_code = 0;
  std::string sentence;
  std::string next_command;  // what to type next; empty when there is nothing to do
};

using Effect = std::variant<SendToNode, SignalAgent, SignalSelf, ReadClaims, FinishJob>;

struct Decision {
  std::vector<Effect> effects;
  std::vector<Event> raise;  // to be fed next, in order
  std::string detail;    // "class infrastructure, blame node b (1 of 2 in 1 h), restart 1 of 50"
  std::string sentence;  // the reason; empty when nothing was decided
};

Decision Step(const Policy& policy, State& state, const Event& event);

// The time by which the core wants the next Tick, if nothing else happens.
Duration NextTick(const Policy& policy, const State& state);

// One line for transcripts: "stop g1 on a, b", "start g2 on a, c".
std::string Describe(const Effect& effect);

}  // namespace perdure::core
