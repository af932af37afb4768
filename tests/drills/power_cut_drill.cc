// The process under the power cuts of power_cut.sh.
//
//   power_cut_drill save ROOT [--leave-out shard-fsync|directory-fsync | --one-generation]
//     generation after generation, each claims, restores, and saves a few steps, until it is
//     killed. Each checkpoint that is durable is reported as a line "durable STEP" on standard
//     output. With
//     --leave-out it is a broken saver: those fsyncs report success and do nothing. With
//     --one-generation it saves in the first one until it is told that it is fenced, and exits 1.
//   power_cut_drill check ROOT STEP
//     restores the newest checkpoint as the next generation would; exit 0 when that is of STEP (the
//     last that was reported, -1: none) or newer and bit-exact, and nothing else that has the name
//     of a checkpoint is broken. Else one line says what is wrong, and it exits 1.
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <barrier>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "checkpoint/catalog.h"
#include "checkpoint/inspect.h"
#include "checkpoint/support.h"
#include "storage/direct_files.h"
#include "storage/faulty_files.h"

namespace perdure {
namespace {

constexpr int kWorld = 2;
constexpr std::int64_t kElements = 200'000;  // of each rank: 1.6 MB
constexpr int kStepsPerGeneration = 6;
constexpr int kStepsUnlimited = 1'000'000;

// Values that are known for every step and differ between any two.
class DrillState final : public Stateful {
 public:
  explicit DrillState(int rank) : rank_(rank), values_(kElements) {}

  void Set(std::int64_t step) { Fill(step, values_); }
  bool Is(std::int64_t step) const {
    std::vector<std::uint64_t> expected(values_.size());
    Fill(step, expected);
    return std::memcmp(values_.data(), expected.data(), values_.size() * 8) == 0;
  }

  Result<State> Describe() override {
    TensorEntry entry;
    entry.name = "values";
    entry.view.data = values_.data();
    entry.view.dtype = DType::kU64;
    entry.view.shape = {kElements};
    entry.holders = Holders::kSharded;
    entry.global_shape = {kElements * kWorld};
    entry.offset = {kElements * rank_};
    State state;
    state.tensors.push_back(std::move(entry));
    return state;
  }

 private:
  void Fill(std::int64_t step, std::vector<std::uint64_t>& values) const {
    std::uint64_t x = static_cast<std::uint64_t>(step * kWorld + rank_ + 1) * 0x9E3779B97F4A7C15U;
    for (std::uint64_t& value : values) {
      x += 0x9E3779B97F4A7C15U;
      value = x ^ (x >> 29);
    }
  }

  const int rank_;
  std::vector<std::uint64_t> values_;
};

struct Outcome {
  Status status;
  std::int64_t restored = -1;
};

// Claims, restores, checks what came back, saves `steps` steps.
Outcome RunDrill(Files& files, const std::string& root, int steps,
                 const std::function<void(std::int64_t)>& durable) {
  Outcome outcome;
  const Result<Generation> claimed =
      CheckpointEngine::ClaimNext(files, root, "drill", Generation(1), RealClock());
  outcome.status = claimed.status();
  if (!claimed.ok()) return outcome;
  CheckpointOptions options = ToyOptions(root);
  options.job = "drill";
  options.async_save = false;
  Board board;
  Mutex mutex;
  std::barrier done(kWorld);
  std::mt19937 random(std::random_device{}());
  RunRanks(kWorld, [&](int r) {
    const auto run = [&]() -> Status {
      MemoryGroup group(board, Rank(r), kWorld, *claimed);
      DrillState state(r);
      CheckpointEvents events;
      if (r == 0) {
        events.on_committed = [&](const CheckpointCommit& commit) { durable(commit.step.value()); };
      }
      PERDURE_ASSIGN_OR_RETURN(
          const std::unique_ptr<CheckpointEngine> engine,
          CheckpointEngine::Open(options, group, files, RealClock(), events, In(30)));
      engine->Add("drill", state);
      PERDURE_ASSIGN_OR_RETURN(const RestoreReport report, engine->Restore());
      const std::int64_t restored = report.next_step - 1;
      if (!report.fresh && !state.Is(restored)) {
        return Status(Code::kDataLoss,
                      fmt::format("rank {}: {} came back with other bytes", r, report.checkpoint));
      }
      if (r == 0) outcome.restored = restored;
      for (int i = 0; i < steps; ++i) {
        const std::int64_t step = report.next_step + i;
        state.Set(step);
        PERDURE_RETURN_IF_ERROR(engine->Save(step));
        // Steps in between, of any length: the window in which a loss would be told of wrongly.
        if (r == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
        }
      }
      done.arrive_and_wait();
      board.TakeDown();
      return engine->Close(In(30));
    };
    const Status status = run();
    if (!status.ok()) done.arrive_and_drop();
    MutexLock lock(mutex);
    if (outcome.status.ok()) outcome.status = status;
  });
  return outcome;
}

int Fail(const std::string& line) {
  std::printf("%s\n", line.c_str());
  return 1;
}

int Save(const std::string& root, const std::string& leave_out, int steps) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  DirectFiles direct;  // what is written here is large enough to pass the page cache by
  FaultyFiles files(direct);
  if (leave_out == "shard-fsync") {
    files.Set({{.kind = Fault::Kind::kSwallow, .verb = "sync", .path_contains = ".safetensors"}});
  } else if (leave_out == "directory-fsync") {
    // What the hint syncs would make the rename before it durable on file systems with one journal.
    files.Set({{.kind = Fault::Kind::kSwallow, .verb = "syncdir"},
               {.kind = Fault::Kind::kSwallow, .verb = "sync", .path_contains = "latest"}});
  } else if (!leave_out.empty()) {
    return Fail("--leave-out knows shard-fsync and directory-fsync");
  }
  for (;;) {
    const Outcome outcome = RunDrill(files, root, steps, [](std::int64_t step) {
      const std::string line = fmt::format("durable {}\n", step);
      if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) ::_exit(3);
    });
    if (!outcome.status.ok()) return Fail(outcome.status.ToString());
  }
}

int Check(const std::string& root, std::int64_t at_least) {
  DirectFiles files;
  const Result<std::vector<CheckpointName>> names = ListCheckpoints(files, root);
  if (!names.ok() && at_least >= 0) return Fail(names.status().ToString());
  if (names.ok()) {
    for (const CheckpointName& name : *names) {
      if (name.kind != NameKind::kCommitted) continue;
      const VerifyReport report = VerifyCheckpoint(files, root, name);
      if (!report.problems.empty()) return Fail(report.problems[0]);
    }
  }
  const Outcome outcome = RunDrill(files, root, 0, [](std::int64_t) {});
  if (!outcome.status.ok()) return Fail(outcome.status.ToString());
  if (outcome.restored < at_least) {
    return Fail(
        fmt::format("step {} was reported durable, {} came back", at_least, outcome.restored));
  }
  return 0;
}

}  // namespace
}  // namespace perdure

int main(int argc, char** argv) {
  perdure::Log().set_level(spdlog::level::off);
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 2 && words[0] == "save") {
    return perdure::Save(words[1], "", perdure::kStepsPerGeneration);
  }
  if (words.size() == 3 && words[0] == "save" && words[2] == "--one-generation") {
    return perdure::Save(words[1], "", perdure::kStepsUnlimited);
  }
  if (words.size() == 4 && words[0] == "save" && words[2] == "--leave-out") {
    return perdure::Save(words[1], words[3], perdure::kStepsPerGeneration);
  }
  if (words.size() == 3 && words[0] == "check") {
    return perdure::Check(words[1], std::atoll(words[2].c_str()));
  }
  std::printf(
      "usage: power_cut_drill save ROOT [--leave-out WHAT | --one-generation] | check ROOT STEP\n");
  return 2;
}
