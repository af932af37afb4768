// A session, from joining the job to leaving it.
//
//  1 read the environment: who am I, how was I started
//  2 open the link to the agent (or the null link); from here on heartbeats go out
//  3 rank 0 hosts the control store and says where; everybody connects to it
//  4 rank 0 claims the generation on the checkpoint root; without a supervisor the others learn it
//  here 5 the communicator of all ranks, then the checkpoints 6 SIGTERM is watched; orders that
//  were kept are carried out … the training body … 7 saves are drained, up to a deadline 8
//  everybody says goodbye through the store; rank 0, who hosts it, leaves last 9 the link closes;
//  everything comes down in reverse order
#include "perdure/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/parse.h"
#include "base/posix.h"
#include "checkpoint/engine.h"
#include "comm/world.h"
#include "device/cuda/cuda_device.h"
#include "health/activity.h"
#include "health/reporter.h"
#include "runtime/control_store.h"
#include "runtime/environment.h"
#include "runtime/no_supervisor_link.h"
#include "runtime/orders.h"
#include "runtime/process_signals.h"
#include "runtime/session_checkpointer.h"
#include "runtime/store_commit_group.h"
#include "storage/bounded_files.h"
#include "storage/direct_files.h"
#include "wire/rank_port.h"

namespace perdure {
namespace {

using namespace std::chrono_literals;

// How long a rank that leaves waits for the others to say goodbye: after an orderly end, and after
// a failure (survivors may still be agreeing on the culprit through the store that rank 0 hosts).
constexpr Duration kFarewellOrderly = 30s;
constexpr Duration kFarewellAfterFailure = 2s;
constexpr Duration kLinkCloseMax = 2s;
constexpr Duration kLinkOpenMax = 30s;

// The exit code of a rank that left because it was asked to, its state on disk: 128 + SIGTERM.
constexpr int kExitPreempted = 143;

Status InertInChild() {
  return Status(Code::kFailedPrecondition,
                "this process was forked from a rank; the session belongs to its parent");
}

RestoreRules RulesFrom(const RestorePolicy& policy) {
  RestoreRules rules;
  switch (policy.mode) {
    case ResumeMode::kAuto:
      rules.resume = RestoreRules::Resume::kAuto;
      break;
    case ResumeMode::kRequire:
      rules.resume = RestoreRules::Resume::kRequire;
      break;
    case ResumeMode::kNever:
      rules.resume = RestoreRules::Resume::kNever;
      break;
  }
  rules.avoid = policy.avoid;
  rules.skip_samples = policy.skip_samples;
  rules.reason = policy.reason;
  return rules;
}

WhenBusy WhenBusyFrom(SaveWhenBusy when_busy) {
  switch (when_busy) {
    case SaveWhenBusy::kSkip:
      return WhenBusy::kSkip;
    case SaveWhenBusy::kQueue:
      return WhenBusy::kQueue;
    case SaveWhenBusy::kWait:
      break;
  }
  return WhenBusy::kWait;
}

// The supervisor's words for a phase name of the program; a name of its own counts as compute.
Phase PhaseFromName(std::string_view name) {
  for (const Phase phase :
       {Phase::kInit, Phase::kRestore, Phase::kData, Phase::kCompute, Phase::kComm, Phase::kUpdate,
        Phase::kCheckpoint, Phase::kEval, Phase::kIdle}) {
    if (NameOf(phase) == name) return phase;
  }
  return Phase::kCompute;
}

}  // namespace

// -------------------------------------------------------------------------------------------
// phases, steps

class PhaseScope::Impl {
 public:
  Impl(Activity& activity, std::uint64_t token) : activity_(activity), token_(token) {}
  ~Impl() { activity_.Leave(token_); }

 private:
  Activity& activity_;
  const std::uint64_t token_;
};

PhaseScope::PhaseScope(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PhaseScope::~PhaseScope() = default;
PhaseScope::PhaseScope(PhaseScope&&) noexcept = default;
PhaseScope& PhaseScope::operator=(PhaseScope&&) noexcept = default;

class Session::Impl final : public CommObserver {
 public:
  Impl(Environment env, void* cuda_stream)
      : environment(std::move(env)),
        generation(environment.generation),
        activity(RealClock(),
                 [this] {
                   if (reporter != nullptr) reporter->Nudge();
                 }),
        devices([cuda_stream](int index) { return OpenCudaDevice(index, cuda_stream); }) {}

  Status Join(const SessionOptions& options);
  int Leave(const Status& body_status);

  RankReport MakeReport();
  Status OpenLink();
  Status ClaimGeneration(Deadline deadline);
  Status OpenCheckpoints(Deadline deadline);
  Status OpenWorld(Deadline deadline);
  Orders::Actions ActionsOnOrders();
  void TellSupervisor(const RankMessage& message);
  void GiveUp(const Status& why);

  // CommObserver.
  void OnFailed(const Status& cause) override;
  void OnWait(bool begins) override;

  void Farewell(bool orderly);

  // Constant after Join.
  Environment environment;
  RankWelcome welcome;
  Generation generation;

  // In the order in which they are built.
  Orders orders;
  Activity activity;
  std::unique_ptr<SupervisorLink> link;
  std::unique_ptr<Reporter> reporter;
  std::unique_ptr<ControlStore> store;
  std::unique_ptr<KeyValue> facts;  // closed when this rank is told to leave
  std::unique_ptr<Files> files;     // a call may take as long as a save may, and no longer
  const Devices devices;
  std::unique_ptr<StoreCommitGroup> commit_group;
  std::unique_ptr<CheckpointEngine> engine;
  std::shared_ptr<DataLineage> lineage = std::make_shared<DataLineage>();
  std::unique_ptr<SessionCheckpointer> checkpointer;
  std::unique_ptr<KeyValue> meetings;  // of communicators
  std::unique_ptr<FailureArbiter> arbiter;
  FlightRecorder recorder;
  Lane lane;
  std::unique_ptr<Communicator> world;
  std::atomic<FailureArbiter*> communicators{nullptr};  // once open; for the reporter's thread
  std::unique_ptr<SigtermWatch> sigterm;

  // The training thread: the one that joined. Its phases while it stands still.
  const std::thread::id training_thread = std::this_thread::get_id();
  std::uint64_t stall = 0;      // for a save
  std::uint64_t comm_wait = 0;  // for a collective
  int steps_open = 0;

  bool left = false;
  int exit_code = 1;
};

class StepScope::Impl {
 public:
  Impl(Session::Impl& session, std::int64_t step)
      : session_(session),
        step_(step),
        compute_(session.activity.Enter(Phase::kCompute, "", std::nullopt)) {
    session_.steps_open += 1;
    session_.activity.BeginStep(Step(step));
    if (session_.engine != nullptr) session_.engine->BeginStep(step);
  }
  ~Impl() {
    if (compute_ == 0 || InForkedChild()) return;
    session_.steps_open -= 1;
    session_.activity.Leave(compute_);
    // What is being captured may lie in memory that goes with the loop.
    if (session_.engine != nullptr) session_.engine->FinishCapture();
  }

  Status BeforeUpdate() {
    if (InForkedChild()) return InertInChild();
    if (const auto leaving = session_.orders.leaving()) return *leaving;
    return session_.engine == nullptr ? Ok() : session_.engine->BeforeUpdate();
  }

  Status End(const StepMetrics& metrics) {
    if (InForkedChild()) return InertInChild();
    if (compute_ == 0) {
      return Status(Code::kFailedPrecondition, fmt::format("step {} was ended twice", step_));
    }
    if (const auto leaving = session_.orders.leaving()) return *leaving;
    session_.steps_open -= 1;
    session_.activity.EndStep(Step(step_), metrics.loss, metrics.finite, metrics.samples);
    session_.activity.Leave(std::exchange(compute_, 0));
    if (session_.engine == nullptr) return Ok();
    const Status saved = session_.engine->EndStep(step_, !metrics.update_skipped);
    // What ended the wait is the better reason than what the wait saw of it.
    if (!saved.ok() && session_.orders.leaving().has_value()) return *session_.orders.leaving();
    return saved;
  }

 private:
  Session::Impl& session_;
  const std::int64_t step_;
  std::uint64_t compute_;  // 0: ended
};

StepScope::StepScope(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StepScope::~StepScope() = default;
StepScope::StepScope(StepScope&&) noexcept = default;
StepScope& StepScope::operator=(StepScope&&) noexcept = default;
Status StepScope::BeforeUpdate() {
  return impl_->BeforeUpdate();
}
Status StepScope::End(const StepMetrics& metrics) {
  return impl_->End(metrics);
}

// -------------------------------------------------------------------------------------------------
// joining

Status Session::Impl::Join(const SessionOptions& options) {
  PERDURE_RETURN_IF_ERROR(OpenLink());
  // The program's own word comes before the supervisor's.
  if (!options.checkpoint_directory.empty()) {
    welcome.checkpoint.directory = options.checkpoint_directory;
  }
  if (options.checkpoint_interval.has_value()) {
    welcome.checkpoint.interval_steps = *options.checkpoint_interval;
    welcome.checkpoint.interval_auto = false;
    welcome.checkpoint.max_lost_ms = 0;
  }
  const Deadline deadline = Deadline::After(welcome.init_deadline);
  PERDURE_ASSIGN_OR_RETURN(store, ControlStore::Open(environment, *link, orders, deadline));
  facts = store->Connect();
  DirectOptions direct;
  direct.lane.stall_max = welcome.checkpoint_deadline;
  files = std::make_unique<BoundedFiles>(std::make_shared<DirectFiles>(std::move(direct)),
                                         welcome.checkpoint_deadline);
  PERDURE_RETURN_IF_ERROR(ClaimGeneration(deadline));
  SetLogName(fmt::format("g{} rank {}", ToString(generation), ToString(environment.rank)));
  PERDURE_RETURN_IF_ERROR(OpenWorld(deadline));
  PERDURE_RETURN_IF_ERROR(OpenCheckpoints(deadline));
  PERDURE_ASSIGN_OR_RETURN(sigterm, SigtermWatch::Install([this] { orders.TakeSigterm(); }));
  orders.Connect(ActionsOnOrders());
  activity.SetBase(Phase::kIdle);
  return orders.leaving().value_or(Ok());
}

Status Session::Impl::OpenLink() {
  if (environment.start == Environment::Start::kSupervised) {
    link = std::make_unique<wire::GrpcSupervisorLink>(environment.agent_address);
  } else {
    RankWelcome alone;
    alone.restore.mode = environment.resume;
    alone.restore.reason = "started without a supervisor";
    alone.checkpoint = environment.checkpoint;
    link = std::make_unique<NoSupervisorLink>(std::move(alone));
  }
  const RankHello hello{environment.job, generation, environment.rank, ::getpid(),
                        environment.agent_token};
  PERDURE_ASSIGN_OR_RETURN(
      welcome,
      link->Open(
          hello, [this](const RankCommand& command) { orders.Take(command); },
          [this] { orders.Leave(Status(Code::kAborted, "the agent of this node is gone")); },
          Deadline::After(kLinkOpenMax)));
  reporter = std::make_unique<Reporter>(*link, [this] { return MakeReport(); });
  return Ok();
}

Status Session::Impl::ClaimGeneration(Deadline deadline) {
  const bool supervised = environment.start == Environment::Start::kSupervised;
  const CheckpointSettings& checkpoint = welcome.checkpoint;
  constexpr std::string_view kGenerationKey = "/generation";
  if (environment.rank == Rank(0)) {
    if (checkpoint.directory.empty()) {
      if (!supervised) generation = Generation(environment.restart_count + 1);
    } else if (supervised) {
      PERDURE_RETURN_IF_ERROR(CheckpointEngine::Claim(*files, checkpoint.directory, environment.job,
                                                      generation, RealClock()));
    } else {
      PERDURE_ASSIGN_OR_RETURN(
          generation, CheckpointEngine::ClaimNext(*files, checkpoint.directory, environment.job,
                                                  Generation(1), RealClock()));
    }
    return facts->Set(kGenerationKey, ToString(generation), deadline);
  }
  // Also under a supervisor, who has said the number: nobody goes on before rank 0 holds the claim.
  PERDURE_ASSIGN_OR_RETURN(const std::string claimed, facts->Get(kGenerationKey, deadline));
  const std::optional<std::int64_t> number = ParseInteger(claimed);
  if (!number.has_value() || *number < 1) {
    return Status(
        Code::kInternal,
        fmt::format("rank 0 published \"{}\" as the generation: is it the same build?", claimed));
  }
  generation = Generation(*number);
  return Ok();
}

Status Session::Impl::OpenWorld(Deadline deadline) {
  meetings = store->Connect();
  FailureArbiter::Options arbitration;
  arbitration.rank = environment.rank;
  arbiter = std::make_unique<FailureArbiter>(arbitration, store->Connect());
  communicators.store(arbiter.get());

  CommunicatorOptions options;
  options.rank = environment.rank;
  options.size = environment.world_size;
  options.generation = generation;
  options.patience.not_joined = welcome.not_joined_deadline;
  options.patience.running = welcome.collective_deadline;
  options.gloo = GlooOptionsFromEnvironment();
  PERDURE_ASSIGN_OR_RETURN(
      world, CreateCommunicator(
                 options, CommunicatorParts{*meetings, *arbiter, lane, recorder, RealClock(), this},
                 deadline));
  return Ok();
}

Status Session::Impl::OpenCheckpoints(Deadline deadline) {
  const CheckpointSettings& settings = welcome.checkpoint;
  if (settings.directory.empty()) {
    Log().info("no checkpoint directory is given: checkpoints are off");
  } else {
    CheckpointOptions options;
    options.root = settings.directory;
    options.job = environment.job;
    options.interval_steps = settings.interval_steps;
    if (settings.interval_steps == 0) {
      options.interval = {settings.interval_auto, std::chrono::milliseconds(settings.max_lost_ms)};
    }
    options.init_from.path = settings.init_from;
    if (!settings.init_names.empty()) options.init_from.names = settings.init_names;
    options.history = {welcome.past.interruptions, welcome.past.up};
    options.keep_last_n = settings.keep_last_n;
    options.keep_every_steps = settings.keep_every_steps;
    options.async_save = settings.async_save;
    options.stop_after = settings.stop_after;
    options.staging_bytes_max = settings.staging_bytes_max;
    options.when_busy = WhenBusyFrom(settings.when_busy);
    options.restore = RulesFrom(welcome.restore);
    options.checkpoint_deadline = welcome.checkpoint_deadline;
    options.restore_deadline = welcome.restore_deadline;
    options.preemption_grace = welcome.preemption_grace;
    CheckpointEvents events;
    events.on_committed = [this](const CheckpointCommit& commit) {
      if (environment.rank != Rank(0)) return;
      TellSupervisor(CheckpointCommitted{commit.step, commit.generation, commit.attempt,
                                         commit.bytes, commit.seconds, commit.age_seconds});
    };
    events.on_failed = [this](const CheckpointFailure& failure) {
      if (environment.rank != Rank(0)) return;
      TellSupervisor(CheckpointFailed{failure.step, failure.reason, failure.in_a_row});
    };
    events.on_skipped = [this](const CheckpointSkip& skip) {
      if (environment.rank != Rank(0)) return;
      TellSupervisor(CheckpointSkipped{skip.step, skip.reason, skip.skipped});
    };
    events.on_stall = [this](bool begins) {
      if (begins) {
        stall = activity.Enter(Phase::kCheckpoint, "", std::nullopt);
      } else {
        activity.Leave(stall);
      }
    };
    commit_group = std::make_unique<StoreCommitGroup>(*facts, environment.rank,
                                                      environment.world_size, generation);
    PERDURE_ASSIGN_OR_RETURN(
        engine, CheckpointEngine::Open(std::move(options), *commit_group, *files, RealClock(),
                                       std::move(events), deadline, &devices));
  }
  checkpointer = std::make_unique<SessionCheckpointer>(
      engine.get(), activity, lineage, [this](const RestoreReport& report) {
        if (environment.rank != Rank(0)) return;
        TellSupervisor(RestoreDone{report.fresh, Step(report.next_step - 1), report.from_generation,
                                   report.passed_over});
      });
  return Ok();
}

void Session::Impl::TellSupervisor(const RankMessage& message) {
  if (const Status sent = link->Send(message); !sent.ok()) {
    Log().warn("could not tell the supervisor: {}", sent.message());
  }
}

Orders::Actions Session::Impl::ActionsOnOrders() {
  Orders::Actions actions;
  actions.leave = [this](const Status& why) {
    Log().info("leaving: {}", why.message());
    world->Abort(why);
    // Whoever waits for a peer, in a save or a restore, waits in the store.
    facts->Close();
  };
  actions.peer_dead = [this](Rank rank, const std::string& reason) {
    arbiter->ReportPeerDead(rank, reason);
  };
  actions.save = [this](const std::string& reason, bool then_leave) {
    if (engine != nullptr && world->failure().ok()) {
      engine->RequestSave(reason, then_leave);
    } else if (then_leave) {
      orders.Leave(Status(Code::kPreempted, fmt::format("{}; no checkpoint can be taken", reason)));
    }
  };
  return actions;
}

void Session::Impl::OnFailed(const Status& cause) {
  if (cause.comm_failure() == nullptr) return;
  TellSupervisor(CommFailed{*cause.comm_failure(), cause.message()});
}

void Session::Impl::OnWait(bool begins) {
  if (std::this_thread::get_id() != training_thread) return;
  if (begins) {
    comm_wait = activity.Enter(Phase::kComm, "", std::nullopt);
  } else {
    activity.Leave(comm_wait);
  }
}

RankReport Session::Impl::MakeReport() {
  RankReport report = activity.Snapshot();
  report.generation = generation;
  report.rank = environment.rank;
  if (FailureArbiter* open = communicators.load()) report.communicators = open->Progress();
  return report;
}

// -------------------------------------------------------------------------------------------------
// leaving

int Session::Impl::Leave(const Status& body_status) {
  if (left) return exit_code;
  left = true;
  if (InForkedChild()) return exit_code;

  const Code code = body_status.code();
  const bool orderly = body_status.ok() || code == Code::kPreempted;
  Status durable = Ok();
  if (engine != nullptr) {
    // After a failure a save in flight gets a moment, not the whole patience: peers may be gone.
    const Duration drain = orderly ? welcome.checkpoint_deadline : Duration(kFarewellAfterFailure);
    activity.SetBase(Phase::kCheckpoint);
    durable = engine->Close(Deadline::After(drain));
    if (!durable.ok() && orderly) {
      Log().error("what was to be saved is not durable: {}", durable.message());
    }
  }
  activity.SetBase(Phase::kIdle);
  Farewell(orderly);
  sigterm.reset();
  orders.Disconnect();

  if (code == Code::kPreempted) {
    exit_code = durable.ok() && engine != nullptr ? kExitPreempted : 1;
  } else {
    exit_code = body_status.ok() && durable.ok() ? 0 : 1;
  }
  reporter.reset();  // with a last report: the goodbye comes after the last step
  const Status& told = body_status.ok() ? durable : body_status;
  TellSupervisor(RankLeaving{told.code(), told.message(), durable.ok()});
  link->Close(Deadline::After(kLinkCloseMax));
  return exit_code;
}

void Session::Impl::GiveUp(const Status& why) {
  left = true;
  orders.Disconnect();
  if (reporter == nullptr) return;  // the link never opened
  TellSupervisor(RankLeaving{why.code(), why.message(), true});
  reporter.reset();
  link->Close(Deadline::After(kLinkCloseMax));
}

void Session::Impl::Farewell(bool orderly) {
  const Deadline deadline =
      Deadline::After(orderly ? Duration(kFarewellOrderly) : Duration(kFarewellAfterFailure));
  const auto key = [](std::int64_t rank) { return fmt::format("/farewell/{}", rank); };
  Status said = facts->Set(key(environment.rank.value()), "", deadline);
  if (environment.rank != Rank(0)) return;
  for (std::int64_t rank = 1; said.ok() && rank < environment.world_size; ++rank) {
    said = facts->Get(key(rank), deadline).status();
  }
  if (!said.ok() && orderly) Log().warn("not everybody said goodbye: {}", said.message());
}

// -------------------------------------------------------------------------------------------------
// the public door

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Session>> Session::Open(SessionOptions options) {
  (void)InForkedChild();  // from here on a fork is noticed
  PERDURE_ASSIGN_OR_RETURN(Environment environment, ReadEnvironment(GetEnv, options));
  std::unique_ptr<Session> session(
      new Session(std::make_unique<Impl>(std::move(environment), options.cuda_stream)));
  const Status joined = session->impl_->Join(options);
  if (!joined.ok()) {
    session->impl_->GiveUp(joined);
    return joined;
  }
  return session;
}

int Session::Close(const Status& body_status) {
  return impl_->Leave(body_status);
}

Session::~Session() {
  if (InForkedChild()) {
    (void)impl_.release();  // its threads are the parent's: nothing here can be taken down
    return;
  }
  (void)impl_->Leave(Status(Code::kAborted, "the session was dropped without Close"));
}

Rank Session::rank() const {
  return impl_->environment.rank;
}
int Session::world_size() const {
  return impl_->environment.world_size;
}
Generation Session::generation() const {
  return impl_->generation;
}
const std::string& Session::job() const {
  return impl_->environment.job;
}
Communicator& Session::world() {
  return *impl_->world;
}
Checkpointer& Session::checkpointer() {
  return *impl_->checkpointer;
}

DataPlacement Session::data_placement() const {
  DataPlacement placement;
  placement.data_parallel_rank = static_cast<int>(impl_->environment.rank.value());
  placement.data_parallel_size = impl_->environment.world_size;
  placement.lineage = impl_->lineage;
  return placement;
}

StepScope Session::BeginStep(std::int64_t step) {
  return StepScope(std::make_unique<StepScope::Impl>(*impl_, step));
}

PhaseScope Session::Phase(std::string_view name, std::chrono::seconds deadline) {
  // Between steps a program may do more with its state than a step does: evaluate averaged weights,
  // for one. So such a phase is a fence too.
  if (impl_->engine != nullptr && impl_->steps_open == 0 && !InForkedChild() &&
      std::this_thread::get_id() == impl_->training_thread) {
    impl_->engine->FinishCapture();
  }
  const std::uint64_t token =
      impl_->activity.Enter(PhaseFromName(name), std::string(name), Duration(deadline));
  return PhaseScope(std::make_unique<PhaseScope::Impl>(impl_->activity, token));
}

}  // namespace perdure
