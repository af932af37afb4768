// A script of events for the decision core, and the transcript that comes out. The agents in it are
// obedient: what the core tells them to end, ends, unless the script says otherwise. Invariants are
// checked after every event, and the journalled events alone must give the same durable state.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "supervisor/core/invariants.h"
#include "supervisor/core/step.h"

namespace perdure::core {

// Two nodes of two ranks and one spare, quick to lose patience.
Policy SmallJob();

class Script {
 public:
  explicit Script(Policy policy = SmallJob());

  // --- time
  // Lets time pass in small steps; what runs reports every second. Agents are heard all the while,
  // except those that are silent.
  void Pass(double seconds);
  // The supervisor itself sleeps: time passes, nothing is heard.
  void Sleep(double seconds);
  double now() const { return t_; }

  // --- what agents say
  void Hello(const std::string& node);
  void HelloAll() {
    for (const char* node : {"a", "b", "c"}) Hello(node);
  }
  // As by a new agent process on that node.
  void HelloAnew(const std::string& node);
  void Silence(const std::string& node) { silent_.insert(node); }
  void Speak(const std::string& node) { silent_.erase(node); }
  void Disconnect(const std::string& node);
  void Killed(int rank, int signal);
  void Exited(int rank, int code, const std::string& error_line = "", double lifetime = 100);
  void Left(int rank, int code, Code said, const std::string& message = "", bool durable = true);
  void StartFailed(int rank, const std::string& reason);
  void CommFails(int by, CommFailure::Class failure_class, std::vector<int> suspects,
                 const std::string& message);
  void Restored(int step, int generation);
  void Committed(int step);
  // Ranks of this node ignore stop from now on.
  void Stubborn(const std::string& node) { stubborn_.insert(node); }

  // --- what the ranks do
  // All living ranks: phase compute, having completed `step`; reported at once.
  void CompleteStep(int step);
  void SetPhase(int rank, Phase phase);
  void SetProcess(int rank, ProcessState state);
  // The rank's library reports no more.
  void Mute(int rank) { muted_.insert(rank); }

  // --- people
  void Signal(int signal);
  void Stop(const std::string& reason);
  void Chaos(ChaosRequest request);

  // The supervisor is killed and comes back: only what was journalled is known.
  void RestartSupervisor();
  // A new run on the same state directory after the job ended.
  void CloseJob();

  void Feed(Event event);
  void Feed(EventBody body, const std::string& node = "", bool numbered = false);

  // --- what came out
  const std::string& transcript() const { return transcript_; }
  const std::vector<std::string>& sentences() const { return sentences_; }
  // What the last ranks that were started were told of the generations before them.
  const JobPast& told_past() const { return told_past_; }
  const std::string& last() const { return sentences_.back(); }
  // The effects since the last call, one line each.
  std::vector<std::string> TakeEffects();
  bool Said(const std::string& part) const;
  int generation() const { return static_cast<int>(state_.durable.generation.value()); }
  std::string NodeOfRank(int rank) const { return NodeOf(state_.durable, Rank(rank)); }
  JobPhase phase() const { return state_.durable.phase; }
  const Durable& durable() const { return state_.durable; }
  State& state() { return state_; }
  const Policy& policy() const { return policy_; }
  std::optional<int> exit_code() const { return exit_code_; }
  const std::string& next_command() const { return next_command_; }
  // Replays the journal and compares.
  void CheckReplay() const;

 private:
  struct Process {
    std::string node;
    Generation generation;
    ProcessState state = ProcessState::kRunning;
    RankReport report;
  };
  void StepOne(Event event);
  void Obey(const Effect& effect);
  void EndOnNode(const std::string& node, Generation generation);
  void Report(const std::string& node);
  AgentHello MakeHello(const std::string& node) const;

  const Policy policy_;
  State state_;
  InvariantChecker checker_;
  double t_ = 0;
  std::int64_t term_ = 0;
  std::vector<Event> journal_;
  std::deque<Event> pending_;
  bool feeding_ = false;
  std::map<std::string, int> incarnations_;
  std::map<std::string, std::uint64_t> numbers_;
  std::set<std::string> silent_;
  std::set<std::string> stubborn_;
  std::set<int> muted_;
  std::map<int, Process> processes_;  // by rank
  std::string transcript_;
  std::vector<std::string> sentences_;
  JobPast told_past_;
  std::vector<std::string> effects_;
  std::optional<int> exit_code_;
  std::string next_command_;
};

// Launched, restored afresh, the first `steps` steps done; the checkpoint of `committed` is
// durable.
inline constexpr int kNothingCommitted = -1;
Script RunningJob(int steps = 7, int committed = 3);

}  // namespace perdure::core
