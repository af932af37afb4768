#include "supervisor/core/script.h"

#include <fmt/format.h>

#include <algorithm>

namespace perdure::core {
namespace {

Duration FromSeconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Policy SmallJob() {
  Policy policy;
  policy.job = "tiny";
  policy.nodes = 2;
  policy.spares = 1;
  policy.ranks_per_node = 2;
  policy.suspected = FromSeconds(5);
  policy.node_silent = FromSeconds(10);
  policy.init = FromSeconds(60);
  policy.restore = FromSeconds(60);
  policy.checkpoint = FromSeconds(40);
  policy.other_phase = FromSeconds(30);
  policy.step_floor = FromSeconds(20);
  policy.step_ceiling = FromSeconds(30);
  policy.collective = FromSeconds(10);
  policy.evidence = FromSeconds(4);
  policy.warm_steps = 5;
  return policy;
}

Script::Script(Policy policy) : policy_(std::move(policy)), checker_(policy_) {
  EXPECT_TRUE(CheckPolicy(policy_).ok()) << CheckPolicy(policy_).message();
  Feed(SupervisorStarted{++term_, 1'700'000'000'000, Generation()});
}

void Script::Pass(double seconds) {
  const double end = t_ + seconds;
  double next_report = t_;
  while (t_ < end) {
    if (t_ >= next_report) {
      for (const auto& [node, incarnation] : incarnations_) Report(node);
      next_report = t_ + 1;
    }
    t_ = std::min(end, t_ + 0.25);
    Feed(Tick{});
  }
}

void Script::Sleep(double seconds) {
  t_ += seconds;
  Feed(Tick{});
}

AgentHello Script::MakeHello(const std::string& node) const {
  AgentHello hello;
  hello.job = policy_.job;
  hello.node = node;
  hello.capacity = policy_.ranks_per_node;
  hello.agent_pid = 100;
  hello.incarnation = fmt::format("{}-{}", node, incarnations_.at(node));
  for (const auto& [rank, process] : processes_) {
    if (process.node == node)
      hello.running.push_back({process.generation, Rank(rank), 1000 + rank});
  }
  return hello;
}

void Script::Hello(const std::string& node) {
  incarnations_.try_emplace(node, 1);
  silent_.erase(node);
  Feed(MakeHello(node), node);
}

void Script::HelloAnew(const std::string& node) {
  ++incarnations_[node];
  numbers_[node] = 0;
  for (auto it = processes_.begin(); it != processes_.end();) {
    it = it->second.node == node ? processes_.erase(it) : std::next(it);
  }
  Hello(node);
}

void Script::Disconnect(const std::string& node) {
  silent_.insert(node);
  Feed(NodeDisconnected{}, node);
}

void Script::Killed(int rank, int signal) {
  RankExited exited;
  exited.generation = state_.durable.generation;
  exited.rank = Rank(rank);
  exited.signal = signal;
  exited.lifetime_seconds = 100;
  const std::string node = NodeOfRank(rank);
  processes_.erase(rank);
  Feed(Tick{true});
  Feed(exited, node, true);
}

void Script::Exited(int rank, int code, const std::string& error_line, double lifetime) {
  RankExited exited;
  exited.generation = state_.durable.generation;
  exited.rank = Rank(rank);
  exited.exit_code = code;
  exited.lifetime_seconds = lifetime;
  exited.last_error_line = error_line;
  const std::string node = NodeOfRank(rank);
  processes_.erase(rank);
  Feed(Tick{true});
  Feed(exited, node, true);
}

void Script::Left(int rank, int code, Code said, const std::string& message, bool durable) {
  RankExited exited;
  exited.generation = state_.durable.generation;
  exited.rank = Rank(rank);
  exited.exit_code = code;
  exited.lifetime_seconds = 100;
  exited.leaving = RankLeaving{said, message, durable};
  const std::string node = NodeOfRank(rank);
  processes_.erase(rank);
  Feed(Tick{true});
  Feed(exited, node, true);
}

void Script::StartFailed(int rank, const std::string& reason) {
  const std::string node = NodeOfRank(rank);
  processes_.erase(rank);
  Feed(RankStartFailed{state_.durable.generation, Rank(rank), reason}, node, true);
}

void Script::CommFails(int by, CommFailure::Class failure_class, std::vector<int> suspects,
                       const std::string& message) {
  FromRank<CommFailed> failed;
  failed.generation = state_.durable.generation;
  failed.rank = Rank(by);
  failed.message.failure.failure_class = failure_class;
  for (const int suspect : suspects) {
    failed.message.failure.suspects.push_back({Rank(suspect), message});
  }
  failed.message.message = message;
  Feed(Tick{true});
  Feed(failed, NodeOfRank(by), true);
}

void Script::Restored(int step, int generation) {
  FromRank<RestoreDone> done;
  done.generation = state_.durable.generation;
  done.message.fresh = step < 0;
  done.message.step = perdure::Step(step);
  done.message.from_generation = Generation(generation);
  Feed(done, NodeOfRank(0), true);
}

void Script::Committed(int step) {
  FromRank<CheckpointCommitted> committed;
  committed.generation = state_.durable.generation;
  committed.message.step = perdure::Step(step);
  committed.message.generation = state_.durable.generation;
  Feed(committed, NodeOfRank(0), true);
}

void Script::CompleteStep(int step) {
  std::set<std::string> nodes;
  for (auto& [rank, process] : processes_) {
    if (muted_.count(rank) != 0) continue;
    process.report.phase = Phase::kCompute;
    process.report.step = perdure::Step(step + 1);
    process.report.completed_step = perdure::Step(step);
    process.report.time_spent.compute += 1;
    nodes.insert(process.node);
  }
  for (const std::string& node : nodes) Report(node);
  Feed(Tick{});
}

void Script::SetPhase(int rank, Phase phase) {
  processes_.at(rank).report.phase = phase;
}

void Script::SetProcess(int rank, ProcessState state) {
  processes_.at(rank).state = state;
}

void Script::Signal(int signal) {
  Feed(StopRequested{fmt::format("signal {}", signal), signal});
}

void Script::Stop(const std::string& reason) {
  Feed(StopRequested{reason, 0});
}

void Script::Chaos(ChaosRequest request) {
  Feed(ChaosRequested{std::move(request)});
}

void Script::RestartSupervisor() {
  CheckReplay();
  State replayed;
  for (const Event& event : journal_) (void)core::Step(policy_, replayed, event);
  replayed.seen = Seen();
  state_ = replayed;
  Feed(SupervisorStarted{++term_, 1'700'000'000'000, Generation()});
}

void Script::CloseJob() {
  Feed(JobClosed{});
}

void Script::Report(const std::string& node) {
  if (silent_.count(node) != 0) return;
  NodeReport report;
  report.node = node;
  for (auto& [rank, process] : processes_) {
    if (process.node != node) continue;
    RankObservation observation;
    observation.generation = process.generation;
    observation.rank = Rank(rank);
    observation.pid = 1000 + rank;
    observation.process = process.state;
    const bool mute = muted_.count(rank) != 0;
    process.report.generation = process.generation;
    process.report.rank = Rank(rank);
    if (mute) {
      // The agent repeats the last report and says how old it is.
      observation.report_age = FromSeconds(t_);
    }
    observation.report = process.report;
    report.ranks.push_back(std::move(observation));
  }
  Feed(std::move(report), node);
}

void Script::EndOnNode(const std::string& node, Generation generation) {
  if (stubborn_.count(node) != 0 || silent_.count(node) != 0) return;
  std::vector<int> ended;
  for (const auto& [rank, process] : processes_) {
    if (process.node == node && process.generation <= generation) ended.push_back(rank);
  }
  for (const int rank : ended) {
    RankExited exited;
    exited.generation = processes_.at(rank).generation;
    exited.rank = Rank(rank);
    exited.signal = 15;
    processes_.erase(rank);
    Feed(exited, node, true);
  }
  Feed(GenerationEnded{generation, {}}, node, true);
}

void Script::Obey(const Effect& effect) {
  effects_.push_back(Describe(effect));
  if (const auto* finish = std::get_if<FinishJob>(&effect)) {
    exit_code_ = finish->exit_code;
    next_command_ = finish->next_command;
  }
  const auto* send = std::get_if<SendToNode>(&effect);
  if (send == nullptr || silent_.count(send->node) != 0) return;
  if (const auto* start = std::get_if<StartRanks>(&send->command)) {
    told_past_ = start->welcome.past;
    for (const StartRank& rank : start->ranks) {
      const int number = static_cast<int>(rank.rank.value());
      const auto found = processes_.find(number);
      if (found != processes_.end() && found->second.generation == start->generation) continue;
      if (state_.durable.ends.count(rank.rank) != 0) continue;
      processes_[number] = Process{send->node, start->generation, ProcessState::kRunning, {}};
      muted_.erase(number);
    }
  } else if (const auto* stop = std::get_if<StopGeneration>(&send->command)) {
    if (stop->abort) EndOnNode(send->node, stop->generation);
  } else if (const auto* collect = std::get_if<CollectEvidence>(&send->command)) {
    EvidenceStored stored;
    stored.generation = collect->generation;
    Feed(stored, send->node, true);
  }
}

void Script::StepOne(Event event) {
  event.t = FromSeconds(t_);
  const Durable before = state_.durable;
  Decision decision = core::Step(policy_, state_, event);
  if (IsJournalled(event)) journal_.push_back(event);
  const Status held = checker_.Check(before, event, decision, state_.durable);
  if (!held.ok()) ADD_FAILURE() << held.message() << "\n" << transcript_;
  if (IsJournalled(event)) {
    transcript_ += fmt::format("t={:.3f}  {}\n", t_, Describe(event));
    if (!decision.detail.empty()) transcript_ += fmt::format("          -> {}\n", decision.detail);
    if (!decision.sentence.empty()) {
      transcript_ += fmt::format("          \"{}\"\n", decision.sentence);
      sentences_.push_back(decision.sentence);
    }
    for (const Effect& effect : decision.effects) {
      transcript_ += fmt::format("          * {}\n", Describe(effect));
    }
  }
  for (auto raised = decision.raise.rbegin(); raised != decision.raise.rend(); ++raised) {
    pending_.push_front(*raised);
  }
  for (const Effect& effect : decision.effects) Obey(effect);
}

void Script::Feed(Event event) {
  pending_.push_back(std::move(event));
  if (feeding_) return;
  feeding_ = true;
  while (!pending_.empty()) {
    Event next = std::move(pending_.front());
    pending_.pop_front();
    StepOne(std::move(next));
  }
  feeding_ = false;
}

void Script::Feed(EventBody body, const std::string& node, bool numbered) {
  Event event;
  event.node = node;
  if (!node.empty()) event.incarnation = fmt::format("{}-{}", node, incarnations_[node]);
  if (numbered) event.number = ++numbers_[node];
  event.body = std::move(body);
  Feed(std::move(event));
}

std::vector<std::string> Script::TakeEffects() {
  return std::exchange(effects_, {});
}

bool Script::Said(const std::string& part) const {
  return std::any_of(sentences_.begin(), sentences_.end(), [&](const std::string& sentence) {
    return sentence.find(part) != std::string::npos;
  });
}

void Script::CheckReplay() const {
  State replayed;
  for (const Event& event : journal_) (void)core::Step(policy_, replayed, event);
  EXPECT_TRUE(replayed.durable == state_.durable)
      << "the journal alone does not give the same state\n"
      << transcript_;
}

Script RunningJob(int steps, int committed) {
  Script script;
  script.HelloAll();
  script.Pass(1);
  script.Restored(-1, 0);
  for (int step = 0; step < steps; ++step) {
    script.CompleteStep(step);
    if (step == committed) script.Committed(step);
    script.Pass(1);
  }
  script.TakeEffects();
  return script;
}

}  // namespace perdure::core
