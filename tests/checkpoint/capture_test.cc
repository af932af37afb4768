// What a save captures while the program goes on: deferral behind the fence, and every way in which
// a program may leave it out.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/log.h"
#include "base/posix.h"
#include "checkpoint/capture_plan.h"
#include "checkpoint/engine.h"
#include "checkpoint/fence.h"
#include "device/fake_device.h"
#include "storage/faulty_files.h"
#include "storage/posix_files.h"
#include "support.h"
#include "support/temp_dir.h"

namespace perdure {
namespace {

// Holds up copies that are made behind the training thread, which is the one that makes the gate.
class Gate {
 public:
  Status Pass() {
    if (std::this_thread::get_id() == training_thread_) return Ok();
    MutexLock lock(mutex_);
    ++waiting_;
    changed_.NotifyAll();
    while (!open_) changed_.Wait(mutex_);
    --waiting_;
    ++passed_;
    return fails_;
  }
  void Set(bool open) {
    MutexLock lock(mutex_);
    open_ = open;
    changed_.NotifyAll();
  }
  void Fail(Status with) {
    MutexLock lock(mutex_);
    fails_ = std::move(with);
  }
  // Until a copy stands before the closed gate.
  void AwaitCopy() {
    MutexLock lock(mutex_);
    while (waiting_ == 0) changed_.Wait(mutex_);
  }
  int passed() const {
    MutexLock lock(mutex_);
    return passed_;
  }

 private:
  const std::thread::id training_thread_ = std::this_thread::get_id();
  mutable Mutex mutex_;
  CondVar changed_;
  bool open_ PERDURE_GUARDED_BY(mutex_) = true;
  Status fails_ PERDURE_GUARDED_BY(mutex_);
  int waiting_ PERDURE_GUARDED_BY(mutex_) = 0;
  int passed_ PERDURE_GUARDED_BY(mutex_) = 0;
};

constexpr std::int64_t kRows = 64;

// One replicated and one sharded tensor, both changed in the update, a buffer and a blob that
// change at any time. Every element is the step.
class Model final : public Stateful {
 public:
  Model(int rank, int world) : rank_(rank), world_(world) { Set(-1); }

  void Update(std::int64_t step) {
    std::fill(weight.begin(), weight.end(), step);
    std::fill(shard.begin(), shard.end(), step * 10);
  }
  void SetRest(std::int64_t step) {
    std::fill(buffer.begin(), buffer.end(), step * 100);
    blob = std::to_string(step);
  }
  void Set(std::int64_t step) {
    Update(step);
    SetRest(step);
  }
  bool Is(std::int64_t step) const {
    const auto all = [](const std::vector<std::int64_t>& values, std::int64_t value) {
      return std::all_of(values.begin(), values.end(), [&](std::int64_t v) { return v == value; });
    };
    return all(weight, step) && all(shard, step * 10) && all(buffer, step * 100) &&
           blob == std::to_string(step);
  }

  Result<State> Describe() override {
    State state;
    state.tensors.push_back(Entry("weight", weight, Changes::kInUpdate));
    TensorEntry piece = Entry("shard", shard, Changes::kInUpdate);
    piece.holders = Holders::kSharded;
    piece.global_shape = {kRows * world_, 32};
    piece.offset = {kRows * rank_, 0};
    state.tensors.push_back(piece);
    state.tensors.push_back(Entry("buffer", buffer, Changes::kAtAnyTime));
    state.blobs.push_back({"blob", blob, Holders::kReplicated, Changes::kAtAnyTime});
    return state;
  }
  Status FinishRestore(const std::vector<BlobEntry>& blobs) override {
    blob = blobs[0].bytes;
    return Ok();
  }

  std::vector<std::int64_t> weight = std::vector<std::int64_t>(kRows * 32);
  std::vector<std::int64_t> shard = std::vector<std::int64_t>(kRows * 32);
  std::vector<std::int64_t> buffer = std::vector<std::int64_t>(kRows * 32);
  std::string blob;

 private:
  static TensorEntry Entry(std::string name, std::vector<std::int64_t>& values, Changes changes) {
    TensorEntry entry;
    entry.name = std::move(name);
    entry.view = {values.data(), DType::kI64, {kRows, 32}};
    entry.changes = changes;
    return entry;
  }

  const int rank_;
  const int world_;
};

// One rank that owns its model, on a device whose copies pass a gate.
class Worker {
 public:
  Worker(Board& board, int rank, int world, Generation generation, Files& files,
         const CheckpointOptions& options, Gate* gate = nullptr, CheckpointEvents events = {})
      : group_(board, Rank(rank), world, generation) {
    auto fake = std::make_unique<FakeDevice>(
        [gate](std::int64_t) { return gate == nullptr ? Ok() : gate->Pass(); });
    device = fake.get();
    devices_.Set(DeviceKind::kCpu, 0, std::move(fake));
    auto made = CheckpointEngine::Open(options, group_, files, RealClock(), std::move(events),
                                       In(30), &devices_);
    opened = made.status();
    if (!opened.ok()) return;
    engine = std::move(made).value();
    auto owned = std::make_unique<Model>(rank, world);
    model = owned.get();
    engine->Add("m", std::move(owned));
    const Result<RestoreReport> restored = engine->Restore();
    opened = restored.status();
    if (opened.ok()) report = *restored;
  }

  // A step that keeps to the fence.
  Status Step(std::int64_t step) {
    engine->BeginStep(step);
    model->buffer[0] = -7;  // the forward pass changes what may change at any time
    PERDURE_RETURN_IF_ERROR(engine->BeforeUpdate());
    model->Set(step);
    return engine->EndStep(step);
  }

  Status opened;
  RestoreReport report;
  Model* model = nullptr;
  FakeDevice* device = nullptr;
  std::unique_ptr<CheckpointEngine> engine;

 private:
  MemoryGroup group_;
  Devices devices_;

 public:
  // Before what the engine uses.
  ~Worker() { engine.reset(); }
};

class CaptureTest : public testing::Test {
 protected:
  std::string root() const { return dir_.path() + "/checkpoints"; }
  Generation Claim() {
    Result<Generation> claimed =
        CheckpointEngine::ClaimNext(files_, root(), "toy", Generation(1), RealClock());
    EXPECT_TRUE(claimed.ok()) << claimed.status().ToString();
    return claimed.ok() ? *claimed : Generation(0);
  }
  CheckpointOptions Options() const {
    CheckpointOptions options = ToyOptions(root());
    options.verify_capture = false;
    return options;
  }
  // What the next generation restores: every byte is of one step.
  std::int64_t RestoredStep(int world = 1, const std::string& avoid = "") {
    const Generation generation = Claim();
    Board board;
    std::atomic<std::int64_t> step{-2};
    CheckpointOptions options = Options();
    options.restore.avoid = {avoid};
    RunRanks(world, [&](int r) {
      Worker worker(board, r, world, generation, files_, options);
      ASSERT_TRUE(worker.opened.ok()) << worker.opened.ToString();
      const std::int64_t mine = worker.report.next_step - 1;
      EXPECT_TRUE(worker.model->Is(mine)) << "rank " << r << " at step " << mine;
      step = mine;
    });
    return step;
  }

  TempDir dir_;
  PosixFiles files_;
};

// The copies are held up until the training thread stands at the fence, and the state changes the
// moment the fence opens.
TEST_F(CaptureTest, WhatChangesRightAfterTheFenceIsNotInIt) {
  constexpr int kWorld = 3;
  const Generation generation = Claim();
  Board board;
  RunRanks(kWorld, [&](int r) {
    Gate gate;
    int fence_stalls = 0;
    bool at_fence = false;
    CheckpointEvents events;
    events.on_stall = [&](bool begins) {
      if (!at_fence || !begins) return;
      ++fence_stalls;
      gate.Set(true);
    };
    CheckpointOptions options = Options();
    options.interval_steps = 2;
    Worker worker(board, r, kWorld, generation, files_, options, &gate, events);
    ASSERT_TRUE(worker.opened.ok()) << worker.opened.ToString();
    for (std::int64_t step = 0; step < 6; ++step) {
      worker.engine->BeginStep(step);
      const bool behind = step == 3 || step == 5;  // a save of the step before
      if (behind) gate.AwaitCopy();
      std::fill(worker.model->buffer.begin(), worker.model->buffer.end(), -7);
      const int passed = gate.passed();
      at_fence = true;
      ASSERT_TRUE(worker.engine->BeforeUpdate().ok());
      ASSERT_TRUE(worker.engine->BeforeUpdate().ok()) << "idempotent";
      at_fence = false;
      EXPECT_EQ(gate.passed() - passed, behind ? 2 : 0) << "weight and shard";
      worker.model->Set(1000 + step);  // of which nothing may be seen
      worker.model->Set(step);
      gate.Set(false);
      ASSERT_TRUE(worker.engine->EndStep(step).ok());
    }
    EXPECT_EQ(fence_stalls, 2);
    const Status closed = worker.engine->Close(In(30));
    EXPECT_TRUE(closed.ok()) << closed.ToString();
    EXPECT_EQ(worker.engine->last_committed_step(), 4);
  });
  EXPECT_EQ(RestoredStep(kWorld), 4);
}

// Without having seen the fence, and again once it was left out, everything is copied in End.
TEST_F(CaptureTest, NothingIsDeferredBeforeTheFenceWasSeenOrAfterItWasMissed) {
  const Generation generation = Claim();
  Board board;
  Gate gate;
  gate.Set(false);  // whoever comes to it stays
  Worker worker(board, 0, 1, generation, files_, Options(), &gate);
  ASSERT_TRUE(worker.opened.ok());
  ASSERT_TRUE(worker.engine->Save(0).ok());
  ASSERT_TRUE(worker.engine->Wait(In(30)).ok());
  ASSERT_TRUE(worker.Step(1).ok());
  worker.engine->BeginStep(2);  // no fence
  worker.model->Set(2);
  ASSERT_TRUE(worker.engine->EndStep(2).ok());
  ASSERT_TRUE(worker.Step(3).ok());
  ASSERT_TRUE(worker.engine->Save(3).ok());
  worker.model->Set(99);
  ASSERT_TRUE(worker.engine->Close(In(30)).ok());
  EXPECT_EQ(gate.passed(), 0);
  EXPECT_EQ(RestoredStep(), 3);
}

TEST_F(CaptureTest, ASaveInsideAStepAfterItsFenceIsNotDeferred) {
  Board board;
  Gate gate;
  gate.Set(false);
  Worker worker(board, 0, 1, Claim(), files_, Options(), &gate);
  ASSERT_TRUE(worker.opened.ok());
  ASSERT_TRUE(worker.Step(0).ok());
  worker.engine->BeginStep(1);
  ASSERT_TRUE(worker.engine->BeforeUpdate().ok());
  worker.model->Set(1);
  ASSERT_TRUE(worker.engine->Save(1).ok());
  worker.model->Update(50);
  ASSERT_TRUE(worker.engine->Close(In(30)).ok());
  EXPECT_EQ(RestoredStep(), 1);
}

// A program that stops calling the fence: the save that relied on it fails on all ranks, loudly,
// and nothing of it is ever visible.
TEST_F(CaptureTest, AStepWithoutTheFenceFailsTheSaveThatReliedOnIt) {
  constexpr int kWorld = 2;
  const Generation generation = Claim();
  FaultyFiles files(files_);  // for its history
  const auto shards_written = [&] {
    const std::vector<std::string> history = files.history();
    return std::count_if(history.begin(), history.end(), [](const std::string& step) {
      return step.rfind("syncdir", 0) == 0 && step.find(".tmp-step-00000002") != std::string::npos;
    });
  };
  Board board;
  RunRanks(kWorld, [&](int r) {
    Gate gate;
    std::vector<std::string> failures;
    CheckpointEvents events;
    events.on_failed = [&](const CheckpointFailure& failure) {
      failures.push_back(failure.reason);
    };
    Worker worker(board, r, kWorld, generation, files, Options(), &gate, events);
    ASSERT_TRUE(worker.opened.ok());
    ASSERT_TRUE(worker.Step(0).ok());
    ASSERT_TRUE(worker.Step(1).ok());
    ASSERT_TRUE(worker.engine->Save(1).ok());
    ASSERT_TRUE(worker.engine->Wait(In(30)).ok());
    ASSERT_TRUE(worker.Step(2).ok());
    gate.Set(false);
    ASSERT_TRUE(worker.engine->Save(2).ok());
    gate.AwaitCopy();
    worker.engine->BeginStep(3);
    if (r == 0) {
      gate.Set(true);
      ASSERT_TRUE(worker.engine->BeforeUpdate().ok());
    }
    worker.model->Set(3);
    gate.Set(true);  // it copies what is there now: a mixture, perhaps
    // Even with all of it on disk the save is not reported.
    while (shards_written() < kWorld) std::this_thread::yield();
    ASSERT_TRUE(worker.engine->EndStep(3).ok()) << "told, and training goes on";
    EXPECT_EQ(worker.engine->Wait(In(30)).code(), Code::kFailedPrecondition);
    ASSERT_EQ(failures.size(), 1u);
    EXPECT_NE(failures[0].find("rank 1: step 3 ended without StepScope::BeforeUpdate while the "
                               "state of step 2"),
              std::string::npos)
        << failures[0];
  });
  EXPECT_FALSE(std::filesystem::exists(root() + "/step-00000002.g1"));
  EXPECT_EQ(RestoredStep(kWorld), 1);
}

TEST_F(CaptureTest, AStepThatSkipsItsUpdateNeedsNoFence) {
  Board board;
  Gate gate;
  Worker worker(board, 0, 1, Claim(), files_, Options(), &gate);
  ASSERT_TRUE(worker.opened.ok());
  ASSERT_TRUE(worker.Step(0).ok());
  gate.Set(false);
  ASSERT_TRUE(worker.engine->Save(0).ok());
  gate.AwaitCopy();
  worker.engine->BeginStep(1);
  ASSERT_TRUE(worker.engine->EndStep(1, /*updated=*/false).ok());
  worker.engine->BeginStep(2);
  gate.Set(true);
  ASSERT_TRUE(worker.engine->BeforeUpdate().ok());
  worker.model->Set(2);
  ASSERT_TRUE(worker.engine->EndStep(2).ok());
  ASSERT_TRUE(worker.engine->Close(In(30)).ok());
  EXPECT_EQ(RestoredStep(), 0);
}

// Each way of going on or away captures first: what follows may do with the state what it likes.
TEST_F(CaptureTest, CloseWaitASecondSaveAndLeavingAStepCaptureFirst) {
  const char* const ways[] = {"close", "wait", "save", "leave"};
  for (int way = 0; way < 4; ++way) {
    SCOPED_TRACE(ways[way]);
    Board board;
    Gate gate;
    CheckpointEvents events;
    bool leaving = false;
    events.on_stall = [&](bool begins) {
      if (leaving && begins) gate.Set(true);
    };
    Worker worker(board, 0, 1, Claim(), files_, Options(), &gate, events);
    ASSERT_TRUE(worker.opened.ok());
    const std::int64_t step = worker.report.next_step;
    ASSERT_TRUE(worker.Step(step).ok());
    gate.Set(false);
    ASSERT_TRUE(worker.engine->Save(step).ok());
    gate.AwaitCopy();
    leaving = true;
    switch (way) {
      case 0:
        EXPECT_TRUE(worker.engine->Close(In(30)).ok());
        break;
      case 1:
        EXPECT_TRUE(worker.engine->Wait(In(30)).ok());
        break;
      case 2:
        EXPECT_TRUE(worker.engine->Save(step + 1).ok());
        break;
      default:
        worker.engine->BeginStep(step + 1);
        worker.engine->FinishCapture();  // an exception, or an early return
    }
    if (way != 2) worker.model->Set(77);  // the second save may still be copying
    EXPECT_TRUE(worker.engine->Close(In(30)).ok());
    if (way == 2) {
      EXPECT_EQ(worker.engine->last_committed_step(), step + 1);
    } else {
      EXPECT_EQ(RestoredStep(), step);
    }
  }
}

// Memory of a part that the checkpointer only borrows may go with the loop that made it.
TEST_F(CaptureTest, ABorrowedPartIsCopiedInEnd) {
  const Generation generation = Claim();
  Board board;
  MemoryGroup group(board, Rank(0), 1, generation);
  Gate gate;
  gate.Set(false);
  Devices devices;
  devices.Set(DeviceKind::kCpu, 0,
              std::make_unique<FakeDevice>([&](std::int64_t) { return gate.Pass(); }));
  auto engine = CheckpointEngine::Open(Options(), group, files_, RealClock(), {}, In(5), &devices);
  ASSERT_TRUE(engine.ok());
  {
    Model model(0, 1);
    (*engine)->Add("m", model);
    ASSERT_TRUE((*engine)->Restore().ok());
    (*engine)->BeginStep(0);
    ASSERT_TRUE((*engine)->BeforeUpdate().ok());
    model.Set(0);
    ASSERT_TRUE((*engine)->EndStep(0).ok());
    ASSERT_TRUE((*engine)->Save(0).ok());
  }
  EXPECT_TRUE((*engine)->Close(In(30)).ok());
  engine->reset();
  EXPECT_EQ(RestoredStep(), 0);
}

TEST_F(CaptureTest, ACopyThatFailsFailsTheSaveAndTheNextOneWorks) {
  Board board;
  Gate gate;
  Worker worker(board, 0, 1, Claim(), files_, Options(), &gate);
  ASSERT_TRUE(worker.opened.ok());
  ASSERT_TRUE(worker.Step(0).ok());
  gate.Fail(Status(Code::kInternal, "the device fell off the bus"));
  ASSERT_TRUE(worker.engine->Save(0).ok());
  ASSERT_TRUE(worker.Step(1).ok());
  const Status failed = worker.engine->Wait(In(30));
  EXPECT_EQ(failed.code(), Code::kInternal) << failed.ToString();
  EXPECT_NE(failed.message().find("m.weight: the device fell off the bus"), std::string::npos)
      << failed.message();
  gate.Fail(Ok());
  ASSERT_TRUE(worker.engine->Save(1).ok());
  EXPECT_TRUE(worker.engine->Close(In(30)).ok());
  EXPECT_EQ(RestoredStep(), 1);
}

// With verify_capture a program that does not keep still is told which tensor it was, whether the
// copy was made before, after, or while it was changed.
TEST_F(CaptureTest, ATensorThatIsChangedBeforeTheFenceIsNamed) {
  for (const bool copied_first : {true, false}) {
    Board board;
    Gate gate;
    CheckpointOptions options = Options();
    options.verify_capture = true;
    Worker worker(board, 0, 1, Claim(), files_, options, &gate);
    ASSERT_TRUE(worker.opened.ok());
    const std::int64_t step = worker.report.next_step;
    ASSERT_TRUE(worker.Step(step).ok());
    gate.Set(false);
    ASSERT_TRUE(worker.engine->Save(step).ok());
    gate.AwaitCopy();
    worker.engine->BeginStep(step + 1);
    const int passed = gate.passed();
    if (copied_first) {
      gate.Set(true);
      while (gate.passed() < passed + 2) std::this_thread::yield();
    }
    (copied_first ? worker.model->weight : worker.model->shard)[3] += 1;
    gate.Set(true);
    const Status told = worker.engine->BeforeUpdate();
    EXPECT_EQ(told.code(), Code::kFailedPrecondition);
    const char* const name = copied_first ? "tensor m.weight was" : "tensor m.shard was";
    EXPECT_NE(told.message().find(name), std::string::npos) << told.ToString();
    EXPECT_FALSE(worker.engine->Close(In(30)).ok());
  }
  EXPECT_EQ(RestoredStep(), -1) << "nothing was committed";
}

// ---------------------------------------------------------------- the staging budget

LocalState StateOf(const std::vector<std::pair<std::string, Changes>>& tensors) {
  LocalState state;
  for (const auto& [name, changes] : tensors) {
    Piece piece;
    piece.name = name;
    piece.shape = piece.global_shape = {256};  // 1 KiB
    piece.offset = {0};
    state.structure.push_back(piece);
    LocalEntry entry;
    entry.name = name;
    entry.changes = changes;
    entry.owned = true;
    state.entries.push_back(entry);
  }
  return state;
}

TEST(CapturePlan, StreamsWhatIsWrittenFirstWhenNotAllFits) {
  using enum CaptureWay;
  const LocalState state = StateOf({{"b", Changes::kInUpdate},
                                    {"d", Changes::kInUpdate},
                                    {"a", Changes::kAtAnyTime},
                                    {"c", Changes::kInUpdate}});
  const auto ways = [&](bool may_defer, std::int64_t bytes) {
    return PlanCapture(state, {may_defer, bytes})->ways;
  };
  EXPECT_EQ(ways(true, 4096), (std::vector{kDeferred, kDeferred, kAtOnce, kDeferred}));
  EXPECT_EQ(ways(true, 3072), (std::vector{kStreamed, kDeferred, kAtOnce, kDeferred}));
  EXPECT_EQ(ways(true, 1024), (std::vector{kStreamed, kStreamed, kAtOnce, kStreamed}));
  EXPECT_EQ(ways(false, 4096), (std::vector{kAtOnce, kAtOnce, kAtOnce, kAtOnce}));
  EXPECT_EQ(ways(false, 2048), (std::vector{kStreamed, kAtOnce, kStreamed, kAtOnce}));
  EXPECT_EQ(ways(true, 1023), (std::vector{kStreamed, kStreamed, kStreamed, kStreamed}));
  EXPECT_FALSE(PlanCapture(state, {true, 1024})->blocking);
  EXPECT_TRUE(PlanCapture(state, {true, 1023})->blocking) << "what changes at any time is streamed";
  EXPECT_TRUE(PlanCapture(state, {false, 2048})->blocking);
  EXPECT_FALSE(PlanCapture(state, {false, 4096})->blocking);
}

// One tensor of three fits. The others are written from where they lie while the training thread
// stands at the fence, and the state changes the moment it opens.
TEST_F(CaptureTest, ASaveThatDoesNotFitIsWrittenInSlicesBeforeTheFenceOpens) {
  constexpr int kWorld = 3;
  constexpr std::int64_t kBudget = 20'000;
  for (const bool deferred : {true, false}) {
    SCOPED_TRACE(deferred);
    const Generation generation = Claim();
    Board board;
    std::atomic<std::int64_t> last{-1};
    RunRanks(kWorld, [&](int r) {
      Gate gate;
      bool at_fence = false;
      int fence_stalls = 0;
      CheckpointEvents events;
      events.on_stall = [&](bool begins) {
        if (!at_fence || !begins) return;
        ++fence_stalls;
        gate.Set(true);
      };
      CheckpointOptions options = Options();
      options.staging_bytes_max = kBudget;
      options.deferred_capture = deferred;
      Worker worker(board, r, kWorld, generation, files_, options, &gate, events);
      ASSERT_TRUE(worker.opened.ok()) << worker.opened.ToString();
      std::int64_t step = worker.report.next_step;
      for (const std::int64_t end = step + 4; step < end; ++step) {
        worker.engine->BeginStep(step);
        at_fence = true;
        ASSERT_TRUE(worker.engine->BeforeUpdate().ok());
        at_fence = false;
        worker.model->Set(1000 + step);
        worker.model->Set(step);
        ASSERT_TRUE(worker.engine->EndStep(step).ok());
        gate.Set(!deferred);
        ASSERT_TRUE(worker.engine->Save(step).ok());
        if (!deferred) worker.model->Set(2000 + step);  // all was captured already
      }
      gate.Set(true);
      const Status closed = worker.engine->Close(In(30));
      EXPECT_TRUE(closed.ok()) << closed.ToString();
      EXPECT_EQ(fence_stalls, deferred ? 3 : 0);
      EXPECT_LE(worker.device->host_bytes_peak(), kBudget);
      last = step - 1;
    });
    EXPECT_EQ(RestoredStep(kWorld), last);
  }
}

TEST_F(CaptureTest, ReplicasThatDifferAreFoundInSlicesToo) {
  const Generation generation = Claim();
  Board board;
  RunRanks(3, [&](int r) {
    CheckpointOptions options = Options();
    options.staging_bytes_max = 1;
    Worker worker(board, r, 3, generation, files_, options);
    ASSERT_TRUE(worker.opened.ok());
    worker.model->Set(0);
    if (r == 2) worker.model->weight[5] = 7;
    ASSERT_TRUE(worker.engine->Save(0).ok());
    const Status status = worker.engine->Wait(In(30));
    EXPECT_NE(status.message().find("tensor m.weight: rank 2 holds other bytes than rank 0, 1"),
              std::string::npos)
        << status.ToString();
    worker.model->Set(1);
    ASSERT_TRUE(worker.engine->Save(1).ok());
    EXPECT_TRUE(worker.engine->Close(In(30)).ok());
  });
  EXPECT_EQ(RestoredStep(3), 1);
}

TEST_F(CaptureTest, WithoutMemoryForACopyASaveIsWrittenInSlices) {
  Board board;
  Worker worker(board, 0, 1, Claim(), files_, Options());
  ASSERT_TRUE(worker.opened.ok());
  ASSERT_TRUE(worker.Step(0).ok());
  worker.device->RefuseHostMemory(true);
  ASSERT_TRUE(worker.engine->Save(0).ok());
  ASSERT_TRUE(worker.Step(1).ok());
  worker.device->RefuseHostMemory(false);
  EXPECT_TRUE(worker.engine->Close(In(30)).ok());
  EXPECT_EQ(worker.device->host_bytes_peak(), 0);
  EXPECT_EQ(RestoredStep(), 0);
}

// What was written from live memory cannot be written again.
TEST_F(CaptureTest, AFaultWhileSlicesAreWrittenFailsTheSaveAndTheNextOneWorks) {
  FaultyFiles faulty(files_);
  Board board;
  CheckpointOptions options = Options();
  options.staging_bytes_max = 1;
  std::atomic<int> failures{0};
  CheckpointEvents events;
  events.on_failed = [&](const CheckpointFailure&) { ++failures; };
  Worker worker(board, 0, 1, Claim(), faulty, options, nullptr, events);
  ASSERT_TRUE(worker.opened.ok());
  worker.model->Set(0);
  faulty.Set({{.last_step = 1, .error = ENOSPC, .verb = "write"}});
  ASSERT_TRUE(worker.engine->Save(0).ok());
  worker.model->Set(50);  // Save has returned: it holds nothing of the state any more
  EXPECT_EQ(worker.engine->Wait(In(30)).code(), Code::kResourceExhausted);
  EXPECT_EQ(failures, 1);
  worker.model->Set(1);
  ASSERT_TRUE(worker.engine->Save(1).ok());
  EXPECT_TRUE(worker.engine->Close(In(30)).ok());
  EXPECT_EQ(RestoredStep(), 1);
}

// ---------------------------------------------------------------- a save that is due while one is
// in flight

// Files that stop before a new shard is made, or before something goes into the trash.
class HeldFiles final : public Files {
 public:
  explicit HeldFiles(Files& base) : base_(base) {}
  void Hold(const std::string& what) {
    MutexLock lock(mutex_);
    held_ = what;
    changed_.NotifyAll();
  }
  void AwaitHeld() {
    MutexLock lock(mutex_);
    while (waiting_ == 0) changed_.Wait(mutex_);
  }

  Result<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    Pass(path);
    return base_.Create(path);
  }
  Result<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    return base_.Open(path);
  }
  Result<std::vector<DirectoryEntry>> List(const std::string& path) override {
    return base_.List(path);
  }
  Result<FileInfo> Info(const std::string& path) override { return base_.Info(path); }
  Status MakeDirectory(const std::string& path) override { return base_.MakeDirectory(path); }
  Status Rename(const std::string& from, const std::string& to, Replace replace) override {
    Pass(to);
    return base_.Rename(from, to, replace);
  }
  Status Link(const std::string& from, const std::string& to) override {
    return base_.Link(from, to);
  }
  Status Remove(const std::string& path) override { return base_.Remove(path); }
  Status SyncDirectory(const std::string& path) override { return base_.SyncDirectory(path); }

 private:
  void Pass(const std::string& path) {
    MutexLock lock(mutex_);
    ++waiting_;
    while (!held_.empty() && path.find(held_) != std::string::npos) {
      changed_.NotifyAll();
      changed_.Wait(mutex_);
    }
    --waiting_;
  }

  Files& base_;
  Mutex mutex_;
  CondVar changed_;
  std::string held_ PERDURE_GUARDED_BY(mutex_);
  int waiting_ PERDURE_GUARDED_BY(mutex_) = 0;
};

TEST_F(CaptureTest, ASkippedSaveIsSkippedByAllRanksCountedAndTold) {
  constexpr int kWorld = 3;
  const Generation generation = Claim();
  Board board;
  std::barrier together(kWorld);
  RunRanks(kWorld, [&](int r) {
    HeldFiles files(files_);
    CheckpointOptions options = Options();
    options.interval_steps = 1;
    options.when_busy = WhenBusy::kSkip;
    Mutex mutex;
    std::vector<std::int64_t> skipped;
    CheckpointEvents events;
    events.on_skipped = [&](const CheckpointSkip& skip) {
      MutexLock lock(mutex);
      skipped.push_back(skip.step.value());
      EXPECT_EQ(skip.skipped, static_cast<std::int64_t>(skipped.size()));
    };
    Worker worker(board, r, kWorld, generation, files, options, nullptr, events);
    ASSERT_TRUE(worker.opened.ok());
    const auto until_idle = [&] {
      EXPECT_TRUE(worker.engine->Wait(In(30)).ok());
      together.arrive_and_wait();
    };
    ASSERT_TRUE(worker.Step(0).ok());
    // All ranks are busy.
    files.Hold(".safetensors");
    ASSERT_TRUE(worker.Step(1).ok());
    ASSERT_TRUE(worker.Step(2).ok());
    ASSERT_TRUE(worker.Step(3).ok());
    files.Hold("");
    until_idle();
    ASSERT_TRUE(worker.Step(4).ok());
    until_idle();
    // Only rank 0 is: it is retiring what is old. The others have captured already.
    if (r == 0) files.Hold(".trash-");
    ASSERT_TRUE(worker.Step(5).ok());
    if (r == 0) {
      worker.engine->FinishCapture();
      files.AwaitHeld();
    } else {
      EXPECT_TRUE(worker.engine->Wait(In(30)).ok());
    }
    together.arrive_and_wait();
    ASSERT_TRUE(worker.Step(6).ok());
    if (r == 0) files.Hold("");
    ASSERT_TRUE(worker.engine->Save(7).ok());
    EXPECT_TRUE(worker.engine->Close(In(30)).ok());
    EXPECT_EQ(worker.engine->last_committed_step(), 7);
    EXPECT_EQ(skipped, (std::vector<std::int64_t>{2, 3, 6}));
  });
  EXPECT_TRUE(std::filesystem::exists(root() + "/step-00000005.g1"));
  EXPECT_FALSE(std::filesystem::exists(root() + "/step-00000006.g1"));
}

TEST_F(CaptureTest, AQueuedSaveIsCapturedWhileAnotherIsWritten) {
  Board board;
  HeldFiles files(files_);
  bool third = false;
  CheckpointEvents events;
  events.on_stall = [&](bool begins) {
    if (third && begins) files.Hold("");
  };
  CheckpointOptions options = Options();
  options.interval_steps = 1;
  options.when_busy = WhenBusy::kQueue;
  options.keep_last_n = 3;
  {
    Worker worker(board, 0, 1, Claim(), files, options, nullptr, events);
    ASSERT_TRUE(worker.opened.ok());
    ASSERT_TRUE(worker.Step(0).ok());
    files.Hold(".safetensors");
    ASSERT_TRUE(worker.Step(1).ok());
    ASSERT_TRUE(worker.Step(2).ok()) << "captured, while the one of step 1 is held up";
    third = true;
    ASSERT_TRUE(worker.Step(3).ok()) << "waits for the one of step 1";
    EXPECT_GE(worker.engine->last_committed_step(), 1);
    EXPECT_TRUE(worker.engine->Close(In(30)).ok());
    EXPECT_EQ(worker.engine->last_committed_step(), 3);
  }
  EXPECT_EQ(RestoredStep(1, "step-00000003.g1"), 2);
}

// The second copy has only the room that the first one leaves.
TEST_F(CaptureTest, TwoSavesInFlightShareOneBudget) {
  constexpr std::int64_t kBudget = 80'000;  // one of 49'152 and a part of another
  const Generation generation = Claim();
  Board board;
  RunRanks(2, [&](int r) {
    CheckpointOptions options = Options();
    options.when_busy = WhenBusy::kQueue;
    options.staging_bytes_max = kBudget;
    options.interval_steps = 1;
    Worker worker(board, r, 2, generation, files_, options);
    ASSERT_TRUE(worker.opened.ok());
    for (std::int64_t step = 0; step < 20; ++step) ASSERT_TRUE(worker.Step(step).ok());
    EXPECT_TRUE(worker.engine->Close(In(30)).ok());
    EXPECT_LE(worker.device->host_bytes_peak(), kBudget);
    EXPECT_EQ(worker.engine->last_committed_step(), 19);
  });
  EXPECT_EQ(RestoredStep(2), 19);
}

// Programs, budgets and policies by chance: whatever was committed is of one step, to the byte.
// PERDURE_TEST_SEED repeats one; PERDURE_TEST_ROUNDS says how many.
TEST_F(CaptureTest, WhateverIsCommittedIsOfOneStep) {
  const std::int64_t rounds = GetEnvInt("PERDURE_TEST_ROUNDS").value().value_or(6);
  std::int64_t seed =
      GetEnvInt("PERDURE_TEST_SEED").value().value_or(static_cast<std::int64_t>(RandomU64() >> 33));
  for (std::int64_t round = 0; round < rounds; ++round, ++seed) {
    SCOPED_TRACE(testing::Message() << "PERDURE_TEST_SEED=" << seed);
    std::mt19937_64 chance(static_cast<std::uint64_t>(seed));
    const int world = 1 + static_cast<int>(chance() % 3);
    CheckpointOptions options = Options();
    options.interval_steps = 1 + static_cast<std::int64_t>(chance() % 3);
    options.keep_last_n = 20;
    options.async_save = chance() % 8 != 0;
    options.verify_capture = chance() % 2 == 0;
    constexpr std::int64_t kBudgets[] = {0, 1, 20'000, 40'000, 60'000};
    options.staging_bytes_max = kBudgets[chance() % std::size(kBudgets)];
    constexpr WhenBusy kPolicies[] = {WhenBusy::kWait, WhenBusy::kSkip, WhenBusy::kQueue};
    options.when_busy = kPolicies[chance() % std::size(kPolicies)];
    // What the program does at each step, on all ranks: an update with the fence, none, or, after
    // waiting until nothing is open, an update without the fence.
    std::vector<std::uint64_t> steps(12);
    for (std::uint64_t& step : steps) step = chance() % 16;

    const std::string base = root() + std::to_string(round);
    options.root = base;
    const Result<Generation> claimed =
        CheckpointEngine::ClaimNext(files_, base, "toy", Generation(1), RealClock());
    ASSERT_TRUE(claimed.ok());
    Board board;
    RunRanks(world, [&](int r) {
      Gate gate;
      Worker worker(board, r, world, *claimed, files_, options, &gate);
      ASSERT_TRUE(worker.opened.ok()) << worker.opened.ToString();
      std::int64_t now = -1;  // the last update's step
      for (std::int64_t step = 0; step < static_cast<std::int64_t>(steps.size()); ++step) {
        const std::uint64_t way = steps[static_cast<std::size_t>(step)];
        if (way == 1) {
          ASSERT_TRUE(worker.engine->Wait(In(30)).ok());
        }
        worker.engine->BeginStep(step);
        worker.model->buffer[7] = -1;
        if (way != 0) {
          if (way != 1) {
            ASSERT_TRUE(worker.engine->BeforeUpdate().ok());
          }
          worker.model->Update(5000 + step);
          worker.model->Update(step);
          now = step;
        }
        worker.model->SetRest(now);
        ASSERT_TRUE(worker.engine->EndStep(step, way != 0).ok());
        worker.model->buffer[7] = -1;
        worker.model->blob = "torn";
        if (way == 2) {
          worker.model->SetRest(now);
          ASSERT_TRUE(worker.engine->Save(step).ok());
        }
      }
      EXPECT_TRUE(worker.engine->Close(In(30)).ok());
    });

    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(base)) {
      const std::string name = entry.path().filename().string();
      if (name.rfind("step-", 0) == 0) names.push_back(name);
    }
    ASSERT_FALSE(names.empty());
    for (const std::string& name : names) {
      const std::int64_t saved = std::stoll(name.substr(5, 8));
      std::int64_t now = -1;
      for (std::int64_t step = 0; step <= saved; ++step) {
        if (steps[static_cast<std::size_t>(step)] != 0) now = step;
      }
      CheckpointOptions restore = Options();
      restore.root = base;
      for (const std::string& other : names) {
        if (other != name) restore.restore.avoid.push_back(other);
      }
      const Result<Generation> next =
          CheckpointEngine::ClaimNext(files_, base, "toy", Generation(1), RealClock());
      ASSERT_TRUE(next.ok());
      // Each restore forks from the generation under test, not from the one before.
      std::filesystem::remove(base + "/lineage/g" + ToString(Generation(next->value() - 1)) +
                              (next->value() == 2 ? ".none" : ".json"));
      Board later;
      RunRanks(world, [&](int r) {
        Worker worker(later, r, world, *next, files_, restore);
        ASSERT_TRUE(worker.opened.ok()) << worker.opened.ToString();
        EXPECT_EQ(worker.report.checkpoint, name);
        EXPECT_TRUE(worker.model->Is(now)) << name << " on rank " << r;
      });
    }
  }
}

// ---------------------------------------------------------------- the end

TEST_F(CaptureTest, ClosingInTheMiddleOfASaveEndsInTimeAndLeavesTheLastOne) {
  HeldFiles files(files_);
  {
    Board board;
    bool closing = false;
    CheckpointEvents events;
    events.on_stall = [&](bool begins) {
      if (closing && !begins) files.Hold("");  // when it has given up waiting
    };
    Worker worker(board, 0, 1, Claim(), files, Options(), nullptr, events);
    ASSERT_TRUE(worker.opened.ok());
    ASSERT_TRUE(worker.Step(0).ok());
    ASSERT_TRUE(worker.engine->Save(0).ok());
    ASSERT_TRUE(worker.engine->Wait(In(30)).ok());
    files.Hold(".safetensors");
    ASSERT_TRUE(worker.Step(1).ok());
    ASSERT_TRUE(worker.engine->Save(1).ok());
    files.AwaitHeld();
    closing = true;
    // No time at all to drain: not durable, and told so.
    EXPECT_FALSE(worker.engine->Close(Deadline::After(Duration(0))).ok());
    EXPECT_FALSE(worker.engine->Close(In(30)).ok()) << "and stays told";
  }
  EXPECT_GE(RestoredStep(), 0);
}

TEST_F(CaptureTest, ExitInTheMiddleOfACaptureLeavesTheLastOne) {
  const std::string path = root();
  const pid_t child = ::fork();
  if (child == 0) {
    PosixFiles files;
    Board board;
    Gate gate;
    const auto claimed =
        CheckpointEngine::ClaimNext(files, path, "toy", Generation(1), RealClock());
    Worker worker(board, 0, 1, *claimed, files, Options(), &gate);
    if (!worker.opened.ok() || !worker.Step(0).ok() || !worker.engine->Save(0).ok() ||
        !worker.engine->Wait(In(30)).ok() || !worker.Step(1).ok()) {
      ::_exit(1);
    }
    gate.Set(false);
    if (!worker.engine->Save(1).ok()) ::_exit(1);
    gate.AwaitCopy();
    std::exit(7);  // destroys what is static while the threads go on
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  EXPECT_EQ(RestoredStep(), 0);
}

std::size_t EntriesOf(const char* directory) {
  std::size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) {
    ++entries;
  }
  return entries;
}

std::int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total = 0;
  std::int64_t resident = 0;
  statm >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

#ifdef NDEBUG
constexpr std::int64_t kSavesByDefault = 1000;
#else
constexpr std::int64_t kSavesByDefault = 150;  // sanitizers are slow, and see leaks by themselves
#endif

// PERDURE_TEST_SAVES says how many.
TEST_F(CaptureTest, ManySavesTakeNoMoreMemoryDescriptorsAndThreadsThanAFew) {
  const std::int64_t saves = GetEnvInt("PERDURE_TEST_SAVES").value().value_or(kSavesByDefault);
  Board board;
  CheckpointOptions options = Options();
  options.interval_steps = 1;
  options.when_busy = WhenBusy::kQueue;
  options.staging_bytes_max = 100'000;
  Worker worker(board, 0, 1, Claim(), files_, options);
  ASSERT_TRUE(worker.opened.ok());
  Log().set_level(spdlog::level::warn);
  std::int64_t step = 0;
  const auto run = [&](std::int64_t count) {
    for (const std::int64_t end = step + count; step < end; ++step) {
      ASSERT_TRUE(worker.Step(step).ok());
    }
    ASSERT_TRUE(worker.engine->Wait(In(60)).ok());
  };
  run(20);
  const std::int64_t resident = ResidentBytes();
  const std::size_t descriptors = EntriesOf("/proc/self/fd");
  const std::size_t threads = EntriesOf("/proc/self/task");
  const std::size_t keys = board.values().size();
  run(saves);
  Log().set_level(spdlog::level::info);
  EXPECT_EQ(EntriesOf("/proc/self/fd"), descriptors);
  EXPECT_EQ(EntriesOf("/proc/self/task"), threads);
  EXPECT_LT(ResidentBytes() - resident, 8 << 20);
  EXPECT_LE(board.values().size(), keys + 2) << "the store forgets what everyone has read";
  EXPECT_EQ(worker.engine->last_committed_step(), step - 1);
  EXPECT_TRUE(worker.engine->Close(In(30)).ok());
}

TEST(FenceRecord, DefersOnlyBehindAFenceThatIsStillToCome) {
  FenceRecord record;
  EXPECT_FALSE(record.MayDefer()) << "none seen yet";
  record.Fence();
  EXPECT_FALSE(record.MayDefer()) << "outside a step it says nothing";
  record.BeginStep();
  record.Fence();
  EXPECT_FALSE(record.MayDefer()) << "this step's has passed";
  EXPECT_TRUE(record.EndStep(true));
  EXPECT_TRUE(record.MayDefer());
  record.BeginStep();
  EXPECT_TRUE(record.EndStep(false)) << "no update, no fence";
  EXPECT_TRUE(record.MayDefer());
  record.BeginStep();
  EXPECT_FALSE(record.EndStep(true));
  EXPECT_FALSE(record.MayDefer());
  record.BeginStep();
  record.Fence();
  EXPECT_TRUE(record.EndStep(true));
  EXPECT_FALSE(record.MayDefer()) << "missed once, for good";
}

}  // namespace
}  // namespace perdure
