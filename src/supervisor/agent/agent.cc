#include "supervisor/agent/agent.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/posix.h"
#include "supervisor/agent/evidence.h"

namespace perdure::agent {
namespace {

// How often the agent looks while something is being ended.
constexpr Duration kStopLook = std::chrono::milliseconds(20);
// A turn that comes later than this after the one before: the machine or the agent slept.
constexpr Duration kSlept = std::chrono::seconds(5);
constexpr Duration kLeftoversPatience = std::chrono::seconds(10);

}  // namespace

Result<std::unique_ptr<Agent>> Agent::Create(AgentOptions options, SupervisorPort& supervisor,
                                             RankPort& ranks, const Clock& clock) {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return ErrnoStatus(errno, "becoming a child subreaper");
  }
  PERDURE_ASSIGN_OR_RETURN(std::unique_ptr<Inbox> inbox, Inbox::Create(clock));
  const std::vector<ProcessStat> left =
      KillMarked(NodeMarker(options.state_directory, options.node),
                 Deadline::After(kLeftoversPatience, clock));
  if (!left.empty()) {
    return Status(
        Code::kFailedPrecondition,
        fmt::format("process {} ({}), left by an earlier agent of node {}, cannot be killed",
                    left.front().pid, left.front().name, options.node));
  }
  return std::unique_ptr<Agent>(
      new Agent(std::move(options), supervisor, ranks, clock, std::move(inbox)));
}

Agent::Agent(AgentOptions options, SupervisorPort& supervisor, RankPort& ranks, const Clock& clock,
             std::unique_ptr<Inbox> inbox)
    : options_(std::move(options)),
      around_{options_.job, options_.node, options_.state_directory, options_.rank_address},
      incarnation_(RandomHex(8)),
      supervisor_(supervisor),
      rank_port_(ranks),
      clock_(clock),
      inbox_(std::move(inbox)),
      tree_(::getpid(), NodeMarker(options_.state_directory, options_.node),
            [](pid_t pid) { return ReadVariableOf(pid, kMarkerVariable); }),
      supervisor_seen_(clock.Now()),
      progress_made_(supervisor_seen_),
      next_report_(supervisor_seen_),
      last_turn_(supervisor_seen_) {}

Status Agent::OpenPorts() {
  RankPort::Handler of_ranks;
  of_ranks.on_hello = [this](const RankHello& hello) { return inbox_->Admit(hello); };
  of_ranks.on_message = [this](Generation generation, Rank rank, const RankMessage& message) {
    inbox_->Say(generation, rank, message);
  };
  of_ranks.on_disconnected = [this](Generation generation, Rank rank) {
    inbox_->Left(generation, rank);
  };
  PERDURE_RETURN_IF_ERROR(rank_port_.Open(std::move(of_ranks)));

  SupervisorPort::Handler of_supervisor;
  of_supervisor.hello = [this] {
    AgentHello hello;
    hello.job = options_.job;
    hello.node = options_.node;
    hello.labels = options_.labels;
    hello.capacity = options_.capacity;
    hello.token = options_.token;
    hello.agent_pid = ::getpid();
    hello.incarnation = incarnation_;
    hello.running = inbox_->Running();
    return hello;
  };
  of_supervisor.on_connected = [this](const SupervisorHello& hello) {
    inbox_->Push(SupervisorConnected{hello});
  };
  of_supervisor.on_command = [this](const SupervisorCommand& command) { inbox_->Push(command); };
  of_supervisor.on_refused = [this](const Status& status) {
    inbox_->Push(SupervisorRefused{status});
  };
  of_supervisor.on_disconnected = [this] { inbox_->Push(SupervisorDisconnected{}); };
  return supervisor_.Open(std::move(of_supervisor));
}

int Agent::Run() {
  if (const Status opened = OpenPorts(); !opened.ok()) {
    Log().error("{}", opened.message());
    return 1;
  }
  while (!Finished(clock_.Now())) {
    Wait();
    const MonotonicTime now = clock_.Now();
    if (now - last_turn_ > kSlept) {
      // Our own sleep is nobody's silence.
      supervisor_seen_ += now - last_turn_;
      progress_made_ += now - last_turn_;
    }
    last_turn_ = now;
    TakeSignals();
    TakeInbox();
    Reap();
    TellOfEnds(now);
    AdvanceStops(now);
    CheckLease(now);
    Report(now);
    outbox_.Flush([this](const AgentMessage& message) { return supervisor_.Send(message); });
    if (exit_code_.has_value() && !Stopping() && !quiet_since_.has_value()) quiet_since_ = now;
  }
  supervisor_.Close(Deadline::After(std::chrono::seconds(2), clock_));
  rank_port_.Close(Deadline::After(std::chrono::seconds(1), clock_));
  return *exit_code_;
}

void Agent::Wait() {
  const MonotonicTime now = clock_.Now();
  Duration wait = std::max<Duration>(next_report_ - now, Duration::zero());
  const bool exits_to_tell = std::any_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    return !entry.second.running() && !entry.second.told;
  });
  if (Stopping() || exits_to_tell || exit_code_.has_value()) wait = std::min(wait, kStopLook);

  std::vector<pollfd> fds = {{inbox_->wake_fd(), POLLIN, 0}};
  if (options_.signal_fd >= 0) fds.push_back({options_.signal_fd, POLLIN, 0});
  for (const auto& [key, process] : ranks_) {
    if (process.running()) fds.push_back({process.pidfd.get(), POLLIN, 0});
  }
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
  ::poll(fds.data(), fds.size(), static_cast<int>(ms));
}

void Agent::TakeSignals() {
  if (options_.signal_fd < 0) return;
  signalfd_siginfo info{};
  while (::read(options_.signal_fd, &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    Log().info("signal {}: ending this node's ranks", signal);
    const bool again = exit_code_.has_value();
    if (!again) exit_code_ = 128 + signal;
    StopAll(fmt::format("the agent of node {} received signal {}", options_.node, signal));
    if (!again) continue;
    for (auto& [generation, here] : generations_) {
      if (here.stop.has_value()) here.stop->Hasten(clock_.Now(), Duration::zero());
    }
  }
}

void Agent::TakeInbox() {
  for (const InboxItem& item : inbox_->TakeAll()) {
    std::visit([this](const auto& what) { On(what); }, item);
  }
}

// ---------------------------------------------------------------- the supervisor

void Agent::On(const SupervisorConnected& item) {
  connected_ = true;
  lease_ = item.hello.lease;
  outbox_.Rewind(item.hello.acknowledged);
  next_report_ = clock_.Now();
  Log().info("connected to the supervisor (term {})", item.hello.term);
}

void Agent::On(const SupervisorDisconnected&) {
  connected_ = false;
  supervisor_seen_ = clock_.Now();
}

void Agent::On(const SupervisorRefused& item) {
  Log().error("the supervisor does not want this agent: {}", item.status.message());
  if (!exit_code_.has_value()) exit_code_ = 1;
  StopAll("the supervisor does not want this node: " + item.status.message());
}

void Agent::On(const SupervisorCommand& item) {
  std::visit([this](const auto& command) { Do(command); }, item);
}

std::string Agent::ObstacleTo(Generation generation) const {
  if (generation <= fenced_up_to_) {
    return fmt::format("generation {} is fenced on node {}", generation.value(), options_.node);
  }
  for (const auto& [older, here] : generations_) {
    if (older >= generation) continue;
    if (!here.ended) {
      return fmt::format("generation {} has not ended on node {}", older.value(), options_.node);
    }
    if (!here.unkillable.empty()) {
      return fmt::format("processes of generation {} on node {} cannot be killed: {}",
                         older.value(), options_.node, fmt::join(here.unkillable, " "));
    }
  }
  return "";
}

void Agent::Do(const StartRanks& command) {
  const Generation generation = command.generation;
  std::string obstacle = ObstacleTo(generation);
  const auto [found, fresh] = generations_.try_emplace(generation);
  GenerationHere& here = found->second;
  if (fresh) {
    here.start = command;
    here.ended = !obstacle.empty();  // then nothing of it will be here
  } else if (here.stop.has_value() || here.ended) {
    obstacle = fmt::format("generation {} was ended on node {}", generation.value(), options_.node);
  }
  progress_made_ = clock_.Now();
  for (const StartRank& rank : command.ranks) {
    const RankKey key{generation, rank.rank};
    if (ranks_.count(key) != 0) continue;  // idempotent, ended ranks included
    if (exit_code_.has_value()) obstacle = "the agent is leaving";
    if (!obstacle.empty()) {
      outbox_.Add(RankStartFailed{generation, rank.rank, obstacle});
      continue;
    }
    const std::string token = RandomHex(16);
    inbox_->Expect(key, token, command.welcome);
    Result<RankProcess> process = StartRankProcess(around_, command, rank, token, clock_.Now());
    if (!process.ok()) {
      outbox_.Add(RankStartFailed{generation, rank.rank, process.status().message()});
      continue;
    }
    tree_.AddRoot(process->root, generation);
    Log().info("started rank {} of generation {} as process {}", rank.rank.value(),
               generation.value(), process->root.pid);
    ranks_.emplace(key, *std::move(process));
  }
  NoteRunning();
}

void Agent::Do(const StopGeneration& command) {
  const auto [found, fresh] = generations_.try_emplace(command.generation);
  GenerationHere& here = found->second;
  if (fresh || here.ended) {
    // Nothing is here (any more): say so, again if need be.
    here.ended = true;
    outbox_.Add(GenerationEnded{command.generation, here.unkillable});
    return;
  }
  BeginStop(command.generation, here, command.abort, command.reason, command.grace);
}

void Agent::Do(const FenceGeneration& command) {
  inbox_->FenceUpTo(command.up_to, command.reason);
  fenced_up_to_ = std::max(fenced_up_to_, command.up_to);
  for (auto& [generation, here] : generations_) {
    if (generation > command.up_to || here.ended) continue;
    TellRanks(generation, Fenced{command.reason});
    BeginStop(generation, here, true, command.reason, here.start.stop_grace);
  }
}

void Agent::Do(const CollectEvidence& command) {
  Evidence evidence{command.generation, options_.node, {}};
  TellRanks(command.generation, DumpRequest{command.reason});
  for (const auto& [key, process] : ranks_) {
    if (key.first != command.generation || !process.running()) continue;
    evidence.texts.emplace_back(key.second, EvidenceOf(process.worker(), process.log_path));
  }
  outbox_.Add(std::move(evidence));
}

void Agent::Do(const SignalRank& command) {
  const auto found = ranks_.find({command.generation, command.rank});
  if (found == ranks_.end() || !found->second.running()) return;
  const std::optional<ProcessStat> worker = ReadStat(found->second.worker());
  if (!worker.has_value() || !SignalProcess(*worker, command.signal)) return;
  Log().info("drill: sent signal {} to rank {} (process {})", command.signal, command.rank.value(),
             worker->pid);
}

void Agent::Do(const ToRanks& command) {
  const auto found = generations_.find(command.generation);
  if (found == generations_.end() || found->second.ended) return;
  GenerationHere& here = found->second;
  if (const auto* address = std::get_if<StoreAddress>(&command.command)) {
    here.store_address = *address;
  }
  if (const auto* dead = std::get_if<PeerDead>(&command.command)) {
    const bool known = std::any_of(here.dead_peers.begin(), here.dead_peers.end(),
                                   [&](const PeerDead& peer) { return peer.rank == dead->rank; });
    if (!known) here.dead_peers.push_back(*dead);
  }
  std::visit([&](const auto& what) { TellRanks(command.generation, what); }, command.command);
}

void Agent::Do(const Acknowledge& command) {
  outbox_.Acknowledge(command.up_to);
}

void Agent::Do(const Shutdown& command) {
  Log().info("the job is over: {}", command.reason);
  if (!exit_code_.has_value()) exit_code_ = 0;
  StopAll(command.reason);
}

// ---------------------------------------------------------------- the ranks

void Agent::On(const RankConnected& item) {
  const auto rank = ranks_.find(item.key);
  const auto generation = generations_.find(item.key.first);
  if (rank == ranks_.end() || generation == generations_.end()) return;
  rank->second.worker_pid = item.pid;
  progress_made_ = clock_.Now();
  const GenerationHere& here = generation->second;
  const auto tell = [&](const RankCommand& command) {
    rank_port_.Send(item.key.first, item.key.second, command);
  };
  if (here.store_address.has_value()) tell(*here.store_address);
  for (const PeerDead& dead : here.dead_peers) tell(dead);
  if (here.stop.has_value()) tell(StopRank{here.abort, "this generation is being ended"});
}

void Agent::On(const RankSaid& item) {
  const auto [generation, rank] = item.key;
  if (const auto* leaving = std::get_if<RankLeaving>(&item.message)) {
    const auto found = ranks_.find(item.key);
    if (found != ranks_.end()) found->second.leaving = *leaving;
  }
  std::visit(
      [&, generation = generation, rank = rank](const auto& message) {
        using Message = std::decay_t<decltype(message)>;
        if constexpr (!std::is_same_v<Message, RankReport>) {
          outbox_.Add(FromRank<Message>{generation, rank, message});
        }
      },
      item.message);
}

void Agent::On(const RankDisconnected&) {}

void Agent::TellRanks(Generation generation, const RankCommand& command) {
  for (const auto& [key, process] : ranks_) {
    if (key.first == generation && process.running())
      rank_port_.Send(generation, key.second, command);
  }
}

// ---------------------------------------------------------------- ends

void Agent::Reap() {
  int status = 0;
  bool any = false;
  for (;;) {
    const pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid <= 0) break;
    for (auto& [key, process] : ranks_) {
      if (process.root.pid != pid || !process.running()) continue;
      process.wait_status = status;
      process.ended = clock_.Now();
      any = true;
    }
  }
  if (any) NoteRunning();
}

void Agent::TellOfEnds(MonotonicTime now) {
  for (auto& [key, process] : ranks_) {
    if (process.running() || process.told) continue;
    if (inbox_->IsConnected(key) && now < process.ended + kLastWords) continue;
    TakeInbox();  // its last words are in by now
    next_report_ = now;
    Report(now);  // so that its last step is known when its end is
    process.told = true;
    outbox_.Add(DescribeEnd(process));
    process.pidfd.Reset();
    process.status.Reset();
  }
}

void Agent::BeginStop(Generation generation, GenerationHere& here, bool abort,
                      const std::string& reason, Duration grace) {
  const MonotonicTime now = clock_.Now();
  if (here.stop.has_value() && (here.abort || !abort)) {
    here.stop->Hasten(now, grace);
    return;
  }
  // Begun, or a coordinated checkpoint is now cut short.
  Log().info("ending generation {} here: {}", generation.value(), reason);
  here.abort = abort;
  here.stop.emplace(now, grace);
  TellRanks(generation, StopRank{abort, reason});
}

void Agent::StopAll(const std::string& reason) {
  for (auto& [generation, here] : generations_) {
    if (!here.ended) BeginStop(generation, here, true, reason, here.start.stop_grace);
  }
}

void Agent::SignalTree(Generation generation, bool abort) {
  for (const ProcessStat& process : tree_.Of(generation)) SignalProcess(process, SIGCONT);
  if (abort) {
    for (const ProcessStat& process : tree_.Of(generation)) SignalProcess(process, SIGTERM);
    return;
  }
  // A checkpoint is to be taken: helpers of the ranks must live on, and ranks with a stream know
  // already.
  for (const auto& [key, process] : ranks_) {
    if (key.first == generation && process.running() && !inbox_->IsConnected(key)) {
      SignalProcess(process.root, SIGTERM);
    }
  }
}

void Agent::AdvanceStops(MonotonicTime now) {
  if (!Stopping()) return;
  LookAround();
  for (auto& [generation, here] : generations_) {
    if (!here.stop.has_value() || here.ended) continue;
    const std::vector<ProcessStat>& alive = tree_.Of(generation);
    switch (here.stop->Next(now, !alive.empty())) {
      case StopSequence::Act::kWait:
        break;
      case StopSequence::Act::kTerminate:
        SignalTree(generation, here.abort);
        break;
      case StopSequence::Act::kKill:
        for (const ProcessStat& process : alive) SignalProcess(process, SIGKILL);
        break;
      case StopSequence::Act::kGiveUp:
        for (const ProcessStat& process : alive) here.unkillable.push_back(process.pid);
        EndGeneration(generation, here);
        break;
      case StopSequence::Act::kDone: {
        // Every end is told before the generation's.
        const bool all_told =
            std::all_of(ranks_.begin(), ranks_.end(), [number = generation](const auto& entry) {
              return entry.first.first != number || entry.second.told;
            });
        if (all_told) EndGeneration(generation, here);
        break;
      }
    }
  }
}

void Agent::EndGeneration(Generation generation, GenerationHere& here) {
  here.ended = true;
  Log().info("generation {} has ended here{}", generation.value(),
             here.unkillable.empty()
                 ? ""
                 : fmt::format("; cannot be killed: {}", fmt::join(here.unkillable, " ")));
  outbox_.Add(GenerationEnded{generation, here.unkillable});
}

void Agent::LookAround() {
  tree_.Update(ReadAllStats());
}

void Agent::CheckLease(MonotonicTime now) {
  for (const auto& [key, process] : ranks_) {
    const std::optional<Inbox::Latest> latest = inbox_->LatestReport(key);
    if (!process.running() || !latest.has_value()) continue;
    const std::pair<Step, Phase> at{latest->report.completed_step, latest->report.phase};
    const auto [seen, fresh] = progress_seen_.try_emplace(key, at);
    if (fresh || seen->second != at) progress_made_ = now;
    seen->second = at;
  }
  if (connected_ || exit_code_.has_value()) return;
  if (now - supervisor_seen_ <= lease_ || now - progress_made_ <= lease_) return;
  Log().error("no supervisor for {:.0f} s and no progress: ending this node's ranks",
              Seconds(now - supervisor_seen_));
  exit_code_ = 1;
  StopAll("the lease is over and there is no progress");
}

// ---------------------------------------------------------------- reports

void Agent::NoteRunning() {
  std::vector<RunningRank> running;
  for (const auto& [key, process] : ranks_) {
    if (process.running()) running.push_back({key.first, key.second, process.root.pid});
  }
  inbox_->SetRunning(std::move(running));
}

void Agent::Report(MonotonicTime now) {
  if (now < next_report_) return;
  next_report_ = now + kAgentReportInterval;
  LookAround();  // so that orphans are known by their parents
  NodeReport report;
  report.node = options_.node;
  for (const auto& [key, process] : ranks_) {
    if (process.told) continue;
    RankObservation seen;
    seen.generation = key.first;
    seen.rank = key.second;
    seen.pid = process.worker();
    seen.process = ProcessState::kGone;
    if (const std::optional<ProcessStat> stat = ReadStat(process.worker())) {
      seen.process = StateOf(*stat);
      seen.cpu_seconds = stat->cpu_seconds;
      seen.resident_bytes = stat->resident_bytes;
    }
    seen.report_age = now - process.started;
    if (const std::optional<Inbox::Latest> latest = inbox_->LatestReport(key)) {
      seen.report_age = std::max<Duration>(now - latest->arrived, Duration::zero());
      seen.report = latest->report;
    }
    report.ranks.push_back(std::move(seen));
  }
  // Not connected: the next report replaces this one anyway.
  (void)supervisor_.Send(report);
}

bool Agent::Stopping() const {
  return std::any_of(generations_.begin(), generations_.end(), [](const auto& entry) {
    return entry.second.stop.has_value() && !entry.second.ended;
  });
}

bool Agent::Finished(MonotonicTime now) const {
  if (!quiet_since_.has_value()) return false;
  return outbox_.empty() || !connected_ || now > *quiet_since_ + kFarewell;
}

}  // namespace perdure::agent
