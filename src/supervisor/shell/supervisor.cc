#include "supervisor/shell/supervisor.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/posix.h"
#include "supervisor/core/step.h"
#include "supervisor/journal/journal.h"
#include "supervisor/journal/replay.h"
#include "supervisor/shell/claims.h"
#include "supervisor/shell/inbox.h"
#include "supervisor/shell/outbox.h"
#include "supervisor/status/status.h"

namespace perdure {
namespace {

using journal::Record;
using Moment = SupervisorOptions::Moment;

constexpr std::size_t kInboxMost = 65536;
constexpr std::size_t kBatchMost = 256;
// How long an agent's message waits for room before the stream counts as broken off.
constexpr Duration kInboxPatience = std::chrono::seconds(30);
constexpr Duration kTickMost = std::chrono::milliseconds(200);
constexpr Duration kTickLeast = std::chrono::milliseconds(1);
constexpr Duration kJournalRetryEvery = std::chrono::milliseconds(500);
constexpr Duration kJournalPatience = std::chrono::seconds(60);
constexpr Duration kAgentsLeaveWithin = std::chrono::seconds(5);
constexpr Duration kPortClosesWithin = std::chrono::seconds(5);

std::int64_t WallMs(const Clock& clock) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(clock.WallNow().time_since_epoch())
      .count();
}

class SupervisorImpl final : public Supervisor, public JobControl {
 public:
  SupervisorImpl(SupervisorOptions options, core::Policy policy, AgentPort& port,
                 const Clock& clock, std::unique_ptr<journal::Writer> writer,
                 journal::Replayed replayed)
      : options_(std::move(options)),
        policy_(std::move(policy)),
        port_(port),
        clock_(clock),
        term_(replayed.terms + 1),
        wall_epoch_ms_(replayed.terms == 0 ? WallMs(clock) : replayed.wall_epoch_ms),
        started_(clock.Now()),
        t_at_start_(std::max<Duration>(replayed.last_t,
                                       std::chrono::milliseconds(WallMs(clock) - wall_epoch_ms_))),
        inbox_(kInboxMost),
        outbox_(port),
        writer_(std::move(writer)) {
    state_ = std::move(replayed.state);
    last_number_ = replayed.last_number;
    for (const auto& [name, node] : state_.durable.nodes) {
      acknowledged_[name] = {node.incarnation, node.acknowledged};
    }
  }

  Result<int> Run() override;
  void OnSignal(int signal) override {
    (void)inbox_.Put(core::StopRequested{fmt::format("signal {}", signal), signal},
                     Deadline::After(kInboxPatience));
  }
  JobControl& control() override { return *this; }

  Result<std::string> StatusJson() override {
    MutexLock lock(mutex_);
    return StatusJsonOf(policy_, state_, Now(), true);
  }
  Status Events(std::int64_t first, bool follow, Deadline deadline,
                const std::function<bool(const std::string& json)>& on_event) override;
  Status Stop(const std::string& reason) override;
  Status Chaos(const ChaosRequest& request) override;

 private:
  struct Acknowledged {
    std::string incarnation;
    std::uint64_t up_to = 0;
  };

  // Time of the job: goes on over restarts of the supervisor, by the wall clock.
  Duration Now() const {
    return t_at_start_ + std::chrono::duration_cast<Duration>(clock_.Now() - started_);
  }

  // The port's threads.
  Result<SupervisorHello> OnHello(const AgentHello& hello);
  void OnMessage(const std::string& node, const AgentMessage& message);
  void OnDisconnected(const std::string& node);

  // The loop.
  Status Handle(std::vector<Incoming> batch);
  void Translate(Incoming item, std::vector<core::Event>& events);
  void TranslateNumbered(const FromAgent& from, NumberedEvent numbered,
                         std::vector<core::Event>& events);
  core::EvidenceStored StoreEvidence(const Evidence& evidence);
  Status Feed(std::vector<core::Event> events);
  void StepAll(std::deque<core::Event> todo, std::vector<Record>& records,
               std::vector<core::Effect>& effects);
  Status AppendPatiently(std::vector<Record>& records);
  void Publish(const std::vector<Record>& records);
  void Perform(const core::Effect& effect, std::vector<core::Event>& answers);
  Duration UntilNextTick();
  Status Survive(Moment moment) const {
    if (!options_.survives || options_.survives(moment)) return Ok();
    return Status(Code::kAborted, "the supervisor was killed by a drill");
  }

  // Constant after construction.
  const SupervisorOptions options_;
  const core::Policy policy_;
  AgentPort& port_;
  const Clock& clock_;
  const std::int64_t term_;
  const std::int64_t wall_epoch_ms_;
  const MonotonicTime started_;
  const Duration t_at_start_;

  Inbox inbox_;

  // The loop's thread only.
  Outbox outbox_;
  std::unique_ptr<journal::Writer> writer_;
  std::set<std::string> connected_;
  std::map<std::string, std::uint64_t> to_acknowledge_;
  std::optional<core::FinishJob> finish_;

  Mutex mutex_;
  CondVar journalled_;
  core::State state_ PERDURE_GUARDED_BY(mutex_);  // written by the loop only
  std::map<std::string, Acknowledged> acknowledged_ PERDURE_GUARDED_BY(mutex_);
  std::map<std::string, std::string> incarnations_ PERDURE_GUARDED_BY(mutex_);  // of open streams
  std::int64_t last_number_ PERDURE_GUARDED_BY(mutex_) = 0;
  bool over_ PERDURE_GUARDED_BY(mutex_) = false;
};

// --------------------------------------------------------------------------- the port's threads

Result<SupervisorHello> SupervisorImpl::OnHello(const AgentHello& hello) {
  // An agent that was only told the address knows no name; its token speaks for it.
  if (!hello.job.empty() && hello.job != policy_.job) {
    return Status(Code::kFailedPrecondition,
                  fmt::format("this supervisor leads {}, not {}", policy_.job, hello.job));
  }
  if (!options_.token.empty() && hello.token != options_.token) {
    return Status(Code::kFailedPrecondition, "the token is not this job's");
  }
  if (hello.node.empty() || hello.incarnation.empty()) {
    return Status(Code::kInvalidArgument, "a hello needs a node name and an incarnation");
  }
  SupervisorHello answer;
  answer.term = term_;
  answer.lease = policy_.lease;
  {
    MutexLock lock(mutex_);
    incarnations_[hello.node] = hello.incarnation;
    const auto found = acknowledged_.find(hello.node);
    if (found != acknowledged_.end() && found->second.incarnation == hello.incarnation) {
      answer.acknowledged = found->second.up_to;
    }
  }
  if (!inbox_.Put(FromAgent{hello.node, hello.incarnation, hello},
                  Deadline::After(kInboxPatience))) {
    return Status(Code::kUnavailable, "the supervisor is busy or leaving; dial again");
  }
  return answer;
}

void SupervisorImpl::OnMessage(const std::string& node, const AgentMessage& message) {
  std::string incarnation;
  {
    MutexLock lock(mutex_);
    incarnation = incarnations_[node];
  }
  FromAgent from{node, incarnation, message};
  if (std::holds_alternative<NodeReport>(message)) {
    (void)inbox_.TryPut(std::move(from));  // the next one replaces it
  } else if (!inbox_.Put(std::move(from), Deadline::After(kInboxPatience))) {
    // Not acknowledged, so it comes again when the agent dials again.
    Log().debug("an event of node {} was not taken in", node);
  }
}

void SupervisorImpl::OnDisconnected(const std::string& node) {
  (void)inbox_.Put(FromAgent{node, "", core::NodeDisconnected{}}, Deadline::After(kInboxPatience));
}

// ------------------------------------------------------------------------------------- the loop

Result<int> SupervisorImpl::Run() {
  PERDURE_RETURN_IF_ERROR(writer_->BeginTerm({term_, WallMs(clock_), policy_}));
  core::Event started;
  started.body = core::SupervisorStarted{term_, wall_epoch_ms_,
                                         HighestClaim(policy_.checkpoint_settings.directory)};
  PERDURE_RETURN_IF_ERROR(Feed({std::move(started)}));
  PERDURE_RETURN_IF_ERROR(port_.Open(
      {[this](const AgentHello& hello) { return OnHello(hello); },
       [this](const std::string& node, const AgentMessage& message) { OnMessage(node, message); },
       [this](const std::string& node) { OnDisconnected(node); }}));

  Status status;
  std::optional<Deadline> leave_by;
  while (status.ok()) {
    if (finish_ && !leave_by) leave_by = Deadline::After(kAgentsLeaveWithin);
    if (leave_by && (connected_.empty() || leave_by->Passed(RealClock().Now()))) break;
    // Woken by what happens; the wait itself is in real time even when the clock is a test's.
    status = Handle(inbox_.Take(kBatchMost, Deadline::After(UntilNextTick())));
  }
  if (status.ok()) {
    core::Event closed;
    closed.body = core::JobClosed{};
    status = Feed({std::move(closed)});
  }
  {
    MutexLock lock(mutex_);
    over_ = true;
    journalled_.NotifyAll();
  }
  inbox_.Close();
  port_.Close(Deadline::After(kPortClosesWithin));
  if (!status.ok()) return status;
  return finish_->exit_code;
}

Duration SupervisorImpl::UntilNextTick() {
  MutexLock lock(mutex_);
  return std::clamp<Duration>(core::NextTick(policy_, state_) - Now(), kTickLeast, kTickMost);
}

Status SupervisorImpl::Handle(std::vector<Incoming> batch) {
  std::vector<core::Event> events;
  for (Incoming& item : batch) Translate(std::move(item), events);
  core::Event tick;
  tick.body = core::Tick{};
  events.push_back(std::move(tick));
  return Feed(std::move(events));
}

void SupervisorImpl::Translate(Incoming item, std::vector<core::Event>& events) {
  core::Event event;
  if (auto* stop = std::get_if<core::StopRequested>(&item)) {
    event.body = std::move(*stop);
    events.push_back(std::move(event));
    return;
  }
  if (auto* chaos = std::get_if<core::ChaosRequested>(&item)) {
    event.body = std::move(*chaos);
    events.push_back(std::move(event));
    return;
  }
  FromAgent& from = std::get<FromAgent>(item);
  event.node = from.node;
  event.incarnation = from.incarnation;
  if (auto* hello = std::get_if<AgentHello>(&from.what)) {
    // What waits for the stream before this one is said again, or no longer true.
    outbox_.Forget(from.node);
    connected_.insert(from.node);
    MutexLock lock(mutex_);
    Acknowledged& acknowledged = acknowledged_[from.node];
    if (acknowledged.incarnation != from.incarnation) acknowledged = {from.incarnation, 0};
    event.body = std::move(*hello);
  } else if (std::holds_alternative<core::NodeDisconnected>(from.what)) {
    connected_.erase(from.node);
    event.body = core::NodeDisconnected{};
  } else {
    AgentMessage& message = std::get<AgentMessage>(from.what);
    if (auto* numbered = std::get_if<NumberedEvent>(&message)) {
      TranslateNumbered(from, std::move(*numbered), events);
      return;
    }
    event.body = std::move(std::get<NodeReport>(message));
  }
  events.push_back(std::move(event));
}

void SupervisorImpl::TranslateNumbered(const FromAgent& from, NumberedEvent numbered,
                                       std::vector<core::Event>& events) {
  {
    MutexLock lock(mutex_);
    Acknowledged& acknowledged = acknowledged_[from.node];
    if (acknowledged.incarnation != from.incarnation) return;  // of a stream long gone
    if (numbered.number <= acknowledged.up_to) {
      to_acknowledge_[from.node] = acknowledged.up_to;
      return;
    }
    // One before it was not taken in: both come again when the agent dials again.
    if (numbered.number != acknowledged.up_to + 1) return;
    acknowledged.up_to = numbered.number;
  }
  to_acknowledge_[from.node] = numbered.number;
  // How far the generation was, before something that may end it.
  core::Event note;
  note.body = core::Tick{true};
  events.push_back(std::move(note));
  core::Event event;
  event.node = from.node;
  event.incarnation = from.incarnation;
  event.number = numbered.number;
  std::visit(
      [&](auto& what) {
        using What = std::decay_t<decltype(what)>;
        if constexpr (std::is_same_v<What, Evidence>) {
          event.body = StoreEvidence(what);
        } else {
          event.body = std::move(what);
        }
      },
      numbered.event);
  events.push_back(std::move(event));
}

core::EvidenceStored SupervisorImpl::StoreEvidence(const Evidence& evidence) {
  core::EvidenceStored stored;
  stored.generation = evidence.generation;
  const std::string directory =
      fmt::format("{}/evidence/g{}", options_.state_directory, evidence.generation.value());
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  for (const auto& [rank, text] : evidence.texts) {
    const std::string path = fmt::format("{}/rank-{}.txt", directory, rank.value());
    std::ofstream file(path, std::ios::binary | std::ios::app);
    file << text;
    file.close();
    if (error || !file) {
      Log().warn("evidence of rank {} could not be written to {}", rank.value(), path);
    } else {
      stored.files.emplace_back(rank, path);
    }
  }
  return stored;
}

// Steps all events and what they raise, journals once, then acts.
Status SupervisorImpl::Feed(std::vector<core::Event> events) {
  std::deque<core::Event> todo(std::make_move_iterator(events.begin()),
                               std::make_move_iterator(events.end()));
  while (true) {
    std::vector<Record> records;
    std::vector<core::Effect> effects;
    StepAll(std::move(todo), records, effects);
    if (!records.empty()) PERDURE_RETURN_IF_ERROR(Survive(Moment::kBeforeJournal));
    PERDURE_RETURN_IF_ERROR(AppendPatiently(records));  // SUP-2
    Publish(records);
    if (!records.empty()) PERDURE_RETURN_IF_ERROR(Survive(Moment::kAfterJournal));
    for (const auto& [node, number] : to_acknowledge_) {
      (void)outbox_.Add(node, Acknowledge{number});
    }
    to_acknowledge_.clear();
    std::vector<core::Event> answers;
    for (const core::Effect& effect : effects) {
      Perform(effect, answers);
      outbox_.Flush();
      PERDURE_RETURN_IF_ERROR(Survive(Moment::kAfterEffect));
    }
    outbox_.Flush();
    if (answers.empty()) return Ok();
    todo.assign(std::make_move_iterator(answers.begin()), std::make_move_iterator(answers.end()));
  }
}

void SupervisorImpl::StepAll(std::deque<core::Event> todo, std::vector<Record>& records,
                             std::vector<core::Effect>& effects) {
  MutexLock lock(mutex_);
  while (!todo.empty()) {
    core::Event event = std::move(todo.front());
    todo.pop_front();
    event.t = Now();
    core::Decision decision = core::Step(policy_, state_, event);
    todo.insert(todo.begin(), std::make_move_iterator(decision.raise.begin()),
                std::make_move_iterator(decision.raise.end()));
    if (!core::IsJournalled(event)) continue;
    Record record;
    record.term = term_;
    record.wall_ms = WallMs(clock_);
    record.text = core::Describe(event);
    record.detail = std::move(decision.detail);
    record.sentence = std::move(decision.sentence);
    for (const core::Effect& effect : decision.effects) {
      record.effects.push_back(core::Describe(effect));
    }
    record.event = std::move(event);
    records.push_back(std::move(record));
    effects.insert(effects.end(), std::make_move_iterator(decision.effects.begin()),
                   std::make_move_iterator(decision.effects.end()));
  }
}

// A full disk heals, and the ranks train on meanwhile; nothing is done that is not journalled.
Status SupervisorImpl::AppendPatiently(std::vector<Record>& records) {
  const Deadline deadline = Deadline::After(kJournalPatience);
  while (true) {
    const Status status = writer_->Append(records);
    if (status.ok()) return status;
    Log().error("{}", status.message());
    if (deadline.Passed(RealClock().Now())) return status;
    Mutex idle;
    CondVar never;
    MutexLock lock(idle);
    (void)never.WaitUntil(idle, Deadline::After(kJournalRetryEvery));
  }
}

void SupervisorImpl::Publish(const std::vector<Record>& records) {
  if (records.empty()) return;
  {
    MutexLock lock(mutex_);
    last_number_ = records.back().number;
    journalled_.NotifyAll();
  }
  if (!options_.on_line) return;
  for (const Record& record : records) {
    if (record.sentence.empty()) continue;
    options_.on_line(fmt::format("t={:.3f}  {}", Seconds(record.event.t), record.sentence));
  }
}

void SupervisorImpl::Perform(const core::Effect& effect, std::vector<core::Event>& answers) {
  if (const auto* send = std::get_if<core::SendToNode>(&effect)) {
    if (!outbox_.Add(send->node, send->command)) {
      Log().warn("too many commands wait for node {}", send->node);
    }
  } else if (const auto* agent = std::get_if<core::SignalAgent>(&effect)) {
    // Only a process that holds a stream right now: its number cannot have been given to another.
    if (connected_.count(agent->node) == 0 || agent->pid <= 1 ||
        ::kill(static_cast<pid_t>(agent->pid), agent->signal) != 0) {
      Log().warn("the agent of {} (pid {}) could not be signalled", agent->node, agent->pid);
    }
  } else if (const auto* self = std::get_if<core::SignalSelf>(&effect)) {
    outbox_.Flush();
    (void)::kill(::getpid(), self->signal);
  } else if (std::holds_alternative<core::ReadClaims>(effect)) {
    core::Event event;
    event.body = core::ClaimsSeen{HighestClaim(policy_.checkpoint_settings.directory)};
    answers.push_back(std::move(event));
  } else {
    finish_ = std::get<core::FinishJob>(effect);
  }
}

// --------------------------------------------------------------------------------- JobControl

Status SupervisorImpl::Events(std::int64_t first, bool follow, Deadline deadline,
                              const std::function<bool(const std::string& json)>& on_event) {
  PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<journal::Reader> reader,
                           journal::Reader::Open(options_.state_directory));
  std::int64_t next = std::max<std::int64_t>(first, 1);
  while (true) {
    bool wanted = true;
    PERDURE_RETURN_IF_ERROR(reader->Events(next, [&](const Record& record) {
      next = record.number + 1;
      wanted = on_event(journal::ToJson(record));
      return wanted;
    }));
    if (!wanted || !follow) return Ok();
    MutexLock lock(mutex_);
    while (last_number_ < next && !over_) {
      if (!journalled_.WaitUntil(mutex_, deadline)) {
        return Status(Code::kDeadlineExceeded, "no new event");
      }
    }
    if (last_number_ < next) return Ok();  // over
  }
}

Status SupervisorImpl::Stop(const std::string& reason) {
  if (inbox_.Put(core::StopRequested{reason, 0}, Deadline::After(kInboxPatience))) return Ok();
  return Status(Code::kUnavailable, "the supervisor is leaving");
}

Status SupervisorImpl::Chaos(const ChaosRequest& request) {
  if (request.signal <= 0 || request.signal >= NSIG) {
    return Status(Code::kInvalidArgument, fmt::format("there is no signal {}", request.signal));
  }
  if (request.target == ChaosRequest::Target::kRank &&
      (request.rank.value() < 0 || request.rank.value() >= policy_.world_size())) {
    return Status(Code::kInvalidArgument,
                  fmt::format("there is no rank {}; ranks are 0 to {}", request.rank.value(),
                              policy_.world_size() - 1));
  }
  if (request.target == ChaosRequest::Target::kAgent) {
    MutexLock lock(mutex_);
    if (state_.durable.nodes.count(request.node) == 0) {
      std::string known;
      for (const auto& [name, node] : state_.durable.nodes) {
        known += (known.empty() ? "" : ", ") + name;
      }
      return Status(Code::kNotFound, fmt::format("there is no node {}; nodes are {}", request.node,
                                                 known.empty() ? "none yet" : known));
    }
  }
  if (inbox_.Put(core::ChaosRequested{request}, Deadline::After(kInboxPatience))) return Ok();
  return Status(Code::kUnavailable, "the supervisor is leaving");
}

}  // namespace

Result<std::unique_ptr<Supervisor>> Supervisor::Create(SupervisorOptions options, AgentPort& port,
                                                       const Clock& clock) {
  PERDURE_ASSIGN_OR_RETURN(core::Policy policy, PolicyOf(options.job));
  PERDURE_ASSIGN_OR_RETURN(std::unique_ptr<journal::Writer> writer,
                           journal::Writer::Open(options.state_directory, options.job.name));
  PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<journal::Reader> reader,
                           journal::Reader::Open(options.state_directory));
  PERDURE_ASSIGN_OR_RETURN(journal::Replayed replayed, journal::Replay(*reader));
  return std::unique_ptr<Supervisor>(std::make_unique<SupervisorImpl>(
      std::move(options), std::move(policy), port, clock, std::move(writer), std::move(replayed)));
}

}  // namespace perdure
