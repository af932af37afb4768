#include "supervisor/shell/fake_agents.h"

#include <fmt/format.h>

#include <utility>

namespace perdure {

FakeAgents::FakeAgents(Plan plan) : plan_(std::move(plan)) {
  for (const std::string& node : plan_.nodes) agents_[node].incarnation = node + "-1";
}

Status FakeAgents::Open(Handler handler) {
  MutexLock lock(mutex_);
  handler_ = std::move(handler);
  open_ = true;
  return Ok();
}

bool FakeAgents::Send(const std::string& node, const SupervisorCommand& command) {
  MutexLock lock(mutex_);
  const auto found = agents_.find(node);
  if (found == agents_.end() || !found->second.connected) return false;
  found->second.commands.push_back(command);
  command_waits_ = true;
  commanded_.NotifyAll();
  return true;
}

void FakeAgents::AwaitCommand(Deadline deadline) {
  MutexLock lock(mutex_);
  while (!command_waits_) {
    if (!commanded_.WaitUntil(mutex_, deadline)) return;
  }
  command_waits_ = false;
}

void FakeAgents::Close(Deadline) {
  MutexLock lock(mutex_);
  open_ = false;
  handler_ = Handler();
  for (auto& [name, agent] : agents_) {
    agent.connected = false;
    agent.commands.clear();  // what was on the wire is gone
  }
}

void FakeAgents::Pump() {
  Handler handler;
  std::vector<AgentHello> hellos;
  {
    MutexLock lock(mutex_);
    if (!open_) return;
    handler = handler_;
    for (auto& [name, agent] : agents_) {
      if (agent.connected || agent.shut_down) continue;
      AgentHello hello;
      hello.job = "tiny";
      hello.node = name;
      hello.capacity = 2;
      hello.incarnation = agent.incarnation;
      for (const auto& [rank, process] : agent.processes) {
        hello.running.push_back({process.generation, rank, 1000 + rank.value()});
      }
      hellos.push_back(std::move(hello));
    }
  }
  for (const AgentHello& hello : hellos) {
    const Result<SupervisorHello> answer = handler.on_hello(hello);
    if (!answer.ok()) continue;
    MutexLock lock(mutex_);
    Agent& agent = agents_[hello.node];
    agent.connected = true;
    while (!agent.unacknowledged.empty() &&
           agent.unacknowledged.front().number <= answer->acknowledged) {
      agent.unacknowledged.pop_front();
    }
    agent.sent = 0;  // the rest is said again
  }
  std::vector<Outgoing> outgoing;
  std::vector<std::string> leaving;
  {
    MutexLock lock(mutex_);
    for (auto& [name, agent] : agents_) {
      std::deque<SupervisorCommand> commands = std::exchange(agent.commands, {});
      for (const SupervisorCommand& command : commands) Obey(name, agent, command);
      if (agent.shut_down && agent.connected) {
        agent.connected = false;
        leaving.push_back(name);
      }
    }
    Train();
    for (auto& [name, agent] : agents_) {
      if (!agent.connected) continue;
      for (; agent.sent < agent.unacknowledged.size(); ++agent.sent) {
        outgoing.push_back({name, agent.unacknowledged[agent.sent]});
      }
      outgoing.push_back({name, ReportOf(name, agent)});
    }
  }
  for (Outgoing& message : outgoing) handler.on_message(message.node, message.message);
  for (const std::string& node : leaving) handler.on_disconnected(node);
}

void FakeAgents::Say(Agent& agent, AgentEvent event) {
  agent.unacknowledged.push_back({++agent.said, std::move(event)});
}

void FakeAgents::EndRank(Agent& agent, Rank rank, std::optional<int> code,
                         std::optional<int> signal) {
  RankExited exited;
  exited.generation = agent.processes.at(rank).generation;
  exited.rank = rank;
  exited.exit_code = code;
  exited.signal = signal;
  exited.lifetime_seconds = 100;
  if (code && *code == 0) exited.leaving = RankLeaving{Code::kOk, "", true};
  if (code && *code == 143) exited.leaving = RankLeaving{Code::kPreempted, "", true};
  agent.processes.erase(rank);
  Say(agent, exited);
}

void FakeAgents::Obey(const std::string& name, Agent& agent, const SupervisorCommand& command) {
  if (const auto* start = std::get_if<StartRanks>(&command)) {
    world_[start->generation.value()] = start->world_size;
    for (const StartRank& rank : start->ranks) {
      const std::pair key(start->generation.value(), rank.rank.value());
      if (!agent.known.insert(key).second) continue;  // idempotent, ended ranks included
      ++starts_[key];
      agent.processes[rank.rank] = Process{start->generation, -1, false};
    }
  } else if (const auto* stop = std::get_if<StopGeneration>(&command)) {
    std::vector<Rank> ended;
    for (const auto& [rank, process] : agent.processes) {
      if (process.generation <= stop->generation) ended.push_back(rank);
    }
    if (!ended.empty()) stopped_.push_back(stop->generation.value());
    for (const Rank rank : ended) {
      if (stop->abort) {
        EndRank(agent, rank, std::nullopt, 15);
      } else {
        EndRank(agent, rank, 143, std::nullopt);
      }
    }
    Say(agent, GenerationEnded{stop->generation, {}});
  } else if (const auto* collect = std::get_if<CollectEvidence>(&command)) {
    Evidence evidence;
    evidence.generation = collect->generation;
    evidence.node = name;
    for (const auto& [rank, process] : agent.processes) {
      evidence.texts.emplace_back(rank, fmt::format("stack of rank {}\n", rank.value()));
    }
    Say(agent, evidence);
  } else if (const auto* signal = std::get_if<SignalRank>(&command)) {
    if (agent.processes.count(signal->rank) != 0) {
      EndRank(agent, signal->rank, std::nullopt, signal->signal);
    }
  } else if (const auto* acknowledge = std::get_if<Acknowledge>(&command)) {
    while (!agent.unacknowledged.empty() &&
           agent.unacknowledged.front().number <= acknowledge->up_to) {
      agent.unacknowledged.pop_front();
      if (agent.sent > 0) --agent.sent;
    }
  } else if (std::holds_alternative<Shutdown>(command)) {
    agent.shut_down = true;
  }
}

bool FakeAgents::AllAcknowledged() const {
  for (const auto& [name, agent] : agents_) {
    if (agent.connected && !agent.unacknowledged.empty()) return false;
  }
  return true;
}

// A step is made only by all ranks of a generation together; and no faster than the supervisor
// listens, so that its every moment is a moment of the training.
void FakeAgents::Train() {
  if (!AllAcknowledged()) return;
  std::map<std::int64_t, std::vector<std::pair<Agent*, Rank>>> by_generation;
  for (auto& [name, agent] : agents_) {
    for (auto& [rank, process] : agent.processes) {
      by_generation[process.generation.value()].emplace_back(&agent, rank);
    }
  }
  for (auto& [generation, ranks] : by_generation) {
    if (static_cast<int>(ranks.size()) != world_[generation]) continue;
    Agent& first = *ranks.front().first;  // holds rank 0: nodes are filled in order of ranks
    Process& zero = first.processes.at(ranks.front().second);
    if (!zero.restored) {
      RestoreDone done;
      done.fresh = committed_ < 0;
      done.step = Step(committed_);
      done.from_generation = Generation(committed_by_);
      Say(first, FromRank<RestoreDone>{Generation(generation), Rank(0), done});
      for (auto& [agent, rank] : ranks) {
        Process& process = agent->processes.at(rank);
        process.restored = true;
        process.completed = committed_;
      }
      continue;
    }
    if (generation == 1 && zero.completed == plan_.hold_at_step) continue;
    if (zero.completed + 1 >= plan_.steps) {
      for (auto& [agent, rank] : ranks) EndRank(*agent, rank, 0, std::nullopt);
      continue;
    }
    for (auto& [agent, rank] : ranks) ++agent->processes.at(rank).completed;
    if (zero.completed > 0 && zero.completed % plan_.commit_every == 0) {
      committed_ = zero.completed;
      committed_by_ = generation;
      CheckpointCommitted commit;
      commit.step = Step(committed_);
      commit.generation = Generation(generation);
      Say(first, FromRank<CheckpointCommitted>{Generation(generation), Rank(0), commit});
    }
    if (!killed_ && zero.completed == plan_.kill_at_step) {
      killed_ = true;
      for (auto& [agent, rank] : ranks) {
        if (rank == Rank(plan_.kill_rank)) EndRank(*agent, rank, std::nullopt, 9);
      }
    }
  }
}

NodeReport FakeAgents::ReportOf(const std::string& name, const Agent& agent) const {
  NodeReport report;
  report.node = name;
  for (const auto& [rank, process] : agent.processes) {
    RankObservation observation;
    observation.generation = process.generation;
    observation.rank = rank;
    observation.pid = 1000 + rank.value();
    RankReport own;
    own.generation = process.generation;
    own.rank = rank;
    own.phase = process.restored ? Phase::kCompute : Phase::kRestore;
    own.step = Step(process.completed + 1);
    own.completed_step = Step(process.completed);
    own.time_spent.compute = 0.01 * (process.completed + 1);
    observation.report = own;
    report.ranks.push_back(std::move(observation));
  }
  return report;
}

std::map<std::pair<std::int64_t, std::int64_t>, int> FakeAgents::starts() {
  MutexLock lock(mutex_);
  return starts_;
}

bool FakeAgents::AnythingRunning() {
  MutexLock lock(mutex_);
  for (const auto& [name, agent] : agents_) {
    if (!agent.processes.empty()) return true;
  }
  return false;
}

std::vector<std::int64_t> FakeAgents::stopped_generations() {
  MutexLock lock(mutex_);
  return stopped_;
}

}  // namespace perdure
