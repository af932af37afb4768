// What does a checkpoint cost, and what does PyTorch's cost, of as many bytes in as many tensors on
// the same file system? How long the training thread stands still, how long until the state is
// durable, how long a restore takes. Ours goes through the whole engine, with its manifest, commit
// and fsync of every directory, and checks every byte when it restores; theirs check none
// (bench/peers/torch_checkpoint.py says what they do).
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/posix.h"
#include "bench/alone.h"
#include "bench/disk.h"
#include "bench/report.h"
#include "checkpoint/engine.h"
#include "storage/bounded_files.h"
#include "storage/direct_files.h"

namespace perdure::bench {
namespace {

constexpr int kRepeats = 3;
// What the hungriest of all needs: states, copies, and the page cache of two files.
constexpr int kMemoryStates = 6;

struct Figures {
  double stall = 0;
  double durable = 0;
  double restore = 0;
};

class DiskModel final : public Stateful {
 public:
  DiskModel(const std::vector<ShardContent>& contents, Changes changes) : changes_(changes) {
    for (const ShardContent& content : contents) {
      names_.push_back(content.piece.name);
      tensors_.emplace_back(content.bytes.begin(), content.bytes.end());
    }
  }
  void Clear() {
    for (auto& tensor : tensors_) std::fill(tensor.begin(), tensor.end(), std::byte{0});
  }
  bool Holds(const std::vector<ShardContent>& contents) const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!std::equal(tensors_[i].begin(), tensors_[i].end(), contents[i].bytes.begin())) {
        return false;
      }
    }
    return true;
  }

  Result<State> Describe() override {
    State state;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      TensorEntry entry;
      entry.name = names_[i];
      entry.view = {
          tensors_[i].data(), DType::kU8, {static_cast<std::int64_t>(tensors_[i].size())}};
      entry.changes = changes_;
      state.tensors.push_back(std::move(entry));
    }
    return state;
  }

 private:
  const Changes changes_;
  std::vector<std::string> names_;
  std::vector<std::vector<std::byte>> tensors_;
};

// A rank with the state of `contents`, in its own generation.
struct OneRank {
  OneRank(const std::string& root, Generation generation, const DiskState& state, Changes changes)
      : files(std::make_shared<DirectFiles>(), std::chrono::seconds(300)), group(generation) {
    Need(CheckpointEngine::Claim(files, root, "bench", generation, RealClock()));
    options.root = root;
    options.job = "bench";
    options.keep_last_n = 2;
    auto opened = CheckpointEngine::Open(options, group, files, RealClock(), {},
                                         Deadline::After(std::chrono::seconds(30)));
    Need(opened.status());
    engine = std::move(opened).value();
    auto owned = std::make_unique<DiskModel>(state.Contents(), changes);
    model = owned.get();
    engine->Add("model", std::move(owned));
  }
  BoundedFiles files;
  Alone group;
  CheckpointOptions options;
  std::unique_ptr<CheckpointEngine> engine;
  DiskModel* model = nullptr;
};

// The second of two saves, and a restore by the next generation. Deferred: the copy is made behind
// a step that is long enough, and what the fence waits counts as standing still.
Figures Ours(const DiskState& state, bool deferred) {
  const DiskDirectory directory;
  WarmMemory(kMemoryStates * state.bytes());
  SettleDisk(directory.path());
  const std::string root = directory.path() + "/checkpoints";
  Figures figures;
  {
    const OneRank rank(root, Generation(1), state,
                       deferred ? Changes::kInUpdate : Changes::kAtAnyTime);
    CheckpointEngine& engine = *rank.engine;
    Need(engine.Restore().status());
    engine.BeginStep(0);
    Need(engine.BeforeUpdate());
    Need(engine.EndStep(0));
    for (std::int64_t step = 0; step < 2; ++step) {
      auto begin = std::chrono::steady_clock::now();
      const auto save = begin;
      Need(engine.Save(step));
      figures.stall = SecondsSince(begin);
      engine.BeginStep(step + 1);
      if (deferred) {
        // The forward and backward.
        volatile double value = 1;
        while (SecondsSince(save) < 1.0) value = value * 0.999 + 0.001;
      }
      begin = std::chrono::steady_clock::now();
      Need(engine.BeforeUpdate());
      figures.stall += SecondsSince(begin);
      Need(engine.EndStep(step + 1));
      Need(engine.Wait(Deadline::After(std::chrono::seconds(300))));
      figures.durable = SecondsSince(save);
    }
    Need(engine.Close(Deadline::After(std::chrono::seconds(60))));
  }
  const OneRank rank(root, Generation(2), state, Changes::kInUpdate);
  rank.model->Clear();
  const auto begin = std::chrono::steady_clock::now();
  const Result<RestoreReport> restored = rank.engine->Restore();
  figures.restore = SecondsSince(begin);
  Need(restored.status());
  if (restored->fresh || !rank.model->Holds(state.Contents())) {
    Need(Status(Code::kDataLoss, "what was restored is not what was saved"));
  }
  Need(rank.engine->Close(Deadline::After(std::chrono::seconds(60))));
  return figures;
}

// Nothing, with a note on stderr, where there is no torch.
std::optional<Figures> Torch(const std::string& kind, std::int64_t bytes, std::string* version) {
  const DiskDirectory directory;
  WarmMemory(kMemoryStates * bytes);
  SettleDisk(directory.path());
  const std::string command =
      fmt::format("{} -W ignore bench/peers/torch_checkpoint.py {} {}/{} {}",
                  GetEnv("PERDURE_BENCH_PYTHON").value_or("python3"), kind, directory.path(), kind,
                  BenchBytes());
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) Need(ErrnoStatus(errno, "running " + command));
  Figures figures;
  long long tensor_bytes = 0;
  char found[64] = "";
  const int read = std::fscanf(pipe, "%lf %lf %lf %lld %63s", &figures.stall, &figures.durable,
                               &figures.restore, &tensor_bytes, found);
  if (::pclose(pipe) != 0 || read != 5) return std::nullopt;
  if (tensor_bytes != bytes) {
    Need(Status(Code::kInternal,
                fmt::format("{} saved {} bytes, we {}", kind, tensor_bytes, bytes)));
  }
  *version = found;
  return figures;
}

struct Rival {
  std::string kind;
  std::string saves;
  std::string loads;
  std::vector<Figures> figures = {};
};

int Run() {
  const DiskState state(BenchBytes());
  std::vector<Rival> rivals = {
      {"torch", "torch.save and fsync", "torch.load, nothing checked"},
      {"dcp", "torch.distributed.checkpoint.save", "its load, nothing checked"},
      {"dcp_async", "torch.distributed.checkpoint.async_save", "its load, nothing checked"}};
  std::vector<Figures> blocking;
  std::vector<Figures> deferred;
  std::string version;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    blocking.push_back(Ours(state, /*deferred=*/false));
    deferred.push_back(Ours(state, /*deferred=*/true));
    for (Rival& rival : rivals) {
      const std::optional<Figures> found = Torch(rival.kind, state.bytes(), &version);
      if (!found.has_value()) {
        fmt::print(stderr,
                   "checkpoint_peers: no rivals without torch; see bench/peers/README.md\n");
        return 0;
      }
      rival.figures.push_back(*found);
    }
  }
  const auto report = [&](const std::string& what, const std::vector<Figures>& ours,
                          double Figures::*figure, const Rival& rival, const std::string& rival_is,
                          double goal) {
    std::vector<double> values;
    std::vector<double> limits;
    for (const Figures& one : ours) values.push_back(one.*figure);
    for (const Figures& one : rival.figures) limits.push_back(one.*figure);
    Report({.id = "checkpoint_peers",
            .what = fmt::format("{} MiB, {}", state.bytes() >> 20, what),
            .unit = "s",
            .limit_is = fmt::format("{}, torch {}", rival_is, version),
            .goal = goal,
            .less_is_better = true},
           values, limits);
  };
  constexpr double kThird = 0.333;
  for (const Rival& rival : rivals) {
    report("stall, copied at once", blocking, &Figures::stall, rival, rival.saves, kThird);
    report("stall, copied behind a step", deferred, &Figures::stall, rival, rival.saves, kThird);
    report("to durable", blocking, &Figures::durable, rival, rival.saves,
           rival.kind == "torch" ? kThird : 1.0);
    report("restore, every byte checked", blocking, &Figures::restore, rival, rival.loads, 1.0);
  }
  return 0;
}

}  // namespace
}  // namespace perdure::bench

int main() {
  perdure::Log().set_level(spdlog::level::err);
  return perdure::bench::Run();
}
