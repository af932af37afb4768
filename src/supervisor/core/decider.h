// The inside of Step for heard and derived events: one object per event, over the durable state
// alone.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "supervisor/core/step.h"

namespace perdure::core {

class Decider {
 public:
  Decider(const Policy& policy, Durable& durable, const Event& event)
      : policy_(policy), d_(durable), event_(event), t_(event.t) {}

  Decision Run();

 private:
  // step.cc: one per event.
  void On(const SupervisorStarted& e);
  void On(const AgentHello& e);
  void On(const RankExited& e);
  void On(const RankStartFailed& e);
  void On(const GenerationEnded& e);
  void On(const EvidenceStored& e);
  void On(const FromRank<StoreReady>& e);
  void On(const FromRank<RestoreDone>& e);
  void On(const FromRank<CheckpointCommitted>& e);
  void On(const FromRank<CheckpointFailed>& e);
  void On(const FromRank<CheckpointSkipped>& e);
  void On(const FromRank<CommFailed>& e);
  void On(const FromRank<RankLeaving>& e);
  void On(const StopRequested& e);
  void On(const ChaosRequested& e);
  void On(const ClaimsSeen& e);
  void On(const JobClosed& e);
  void On(const Due& e);
  void On(const NodesLost& e);
  void On(const Suspected& e);
  void On(const Stalled& e);
  void On(const Verdict& e);
  void On(const Progress& e);
  void On(const DrillDue& e);
  // Seen events never come here.
  void On(const NodeReport&) {}
  void On(const NodeDisconnected&) {}
  void On(const Tick&) {}

  // launch.cc: from waiting to a generation, and from a stopped generation onwards.
  void TryLaunch();
  std::vector<std::string> ChooseNodes();
  bool LetIsolatedReturn(int missing);
  void StartGeneration(const std::vector<std::string>& chosen);
  JobPast Past() const;
  StartRanks StartCommand(const Placed& placed) const;
  void Reconcile(const AgentHello& hello, bool replaced);
  void ProceedWhenGone();
  void FinishLeaving();
  void Finish(int exit_code, const std::string& sentence, const std::string& next_command);

  // judge.cc: what went wrong, what it costs, what comes next.
  Cause CauseOf(const RankExited& e) const;
  void BeginJudging(Duration patience);
  void AskForEvidence(const std::string& reason);
  void JudgeNow();
  void Decide(const Cause& cause);
  Afterwards Weigh(const Cause& cause, bool counts_as_no_progress);
  void CountInstantFailure(const Cause& cause);
  void CountLoadCrash(const Cause& cause);
  void BlameNode(const std::string& node, bool replaceable);
  bool Isolate(const std::string& node, const std::string& why, bool certain);
  void StopCurrent(bool abort, Duration grace, const std::string& reason);
  std::string ResumeText() const;

  bool active() const {
    return d_.phase == JobPhase::kRunning || d_.phase == JobPhase::kJudging ||
           d_.phase == JobPhase::kStopping || d_.phase == JobPhase::kLeaving;
  }
  bool at_work() const { return d_.phase == JobPhase::kRunning || d_.phase == JobPhase::kJudging; }
  bool IsCurrent(Generation generation) const { return active() && generation == d_.generation; }
  Placed* PlacedOn(const std::string& node);
  bool AllEnded(const Placed& placed) const;
  GenerationRecord& record() { return d_.generations.back(); }
  void SetTimer(Timer timer, Duration at) { d_.timers[timer] = at; }
  void ClearTimers();  // all but kReturn
  void Do(Effect effect) { decision_.effects.push_back(std::move(effect)); }
  void Send(const std::string& node, SupervisorCommand command) {
    Do(SendToNode{node, std::move(command)});
  }
  void Say(const std::string& sentence);
  void Detail(const std::string& detail);

  const Policy& policy_;
  Durable& d_;
  const Event& event_;
  const Duration t_;
  Decision decision_;
};

// The half of Step that handles what is only seen: NodeReport, NodeDisconnected, Tick.
void See(const Policy& policy, State& state, const Event& event, Decision& decision);
// What a journalled event shows besides what it decides (a node was heard).
void Notice(const Policy& policy, State& state, const Event& event);

}  // namespace perdure::core
