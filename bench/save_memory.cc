// How much memory does a save take beside the state? With staging_bytes_max the answer must be: no
// more than that, whatever the state's size; what does not fit goes through in slices. Measured:
// the highest resident memory of the process during a save, above what it was before.
//
//   save_memory                            1 GiB of state, with several budgets and without one
//   save_memory STATE_BYTES BUDGET_BYTES   one budget, in this process; prints what was added
//
// Exit 1: a budget was exceeded.
#include <fmt/format.h>
#include <malloc.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "bench/alone.h"
#include "bench/disk.h"
#include "bench/report.h"
#include "checkpoint/engine.h"
#include "storage/bounded_files.h"
#include "storage/direct_files.h"

namespace perdure::bench {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kTensorBytes = 8 * kMiB + 1732;
constexpr std::int64_t kBudgets[] = {64 * kMiB, 256 * kMiB, 0};
constexpr int kRepeats = 3;

class Tensors final : public Stateful {
 public:
  explicit Tensors(std::int64_t about_bytes) {
    for (std::int64_t bytes = 0; bytes < about_bytes; bytes += kTensorBytes) {
      tensors_.emplace_back(static_cast<std::size_t>(kTensorBytes), std::byte{7});
    }
  }
  Result<State> Describe() override {
    State state;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      TensorEntry entry;
      entry.name = fmt::format("tensor.{}", i);
      entry.view = {tensors_[i].data(), DType::kU8, {kTensorBytes}};
      entry.changes = Changes::kInUpdate;
      state.tensors.push_back(std::move(entry));
    }
    return state;
  }

 private:
  std::vector<std::vector<std::byte>> tensors_;
};

// A line of /proc/self/status in bytes.
std::int64_t StatusBytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word != key) continue;
    std::int64_t kib = 0;
    status >> kib;
    return kib * 1024;
  }
  Need(Status(Code::kNotFound, "/proc/self/status has no " + key));
  return 0;
}

std::int64_t AddedBySave(std::int64_t state_bytes, std::int64_t budget_bytes) {
  const DiskDirectory directory;
  const std::string root = directory.path() + "/checkpoints";
  BoundedFiles files(std::make_shared<DirectFiles>(), std::chrono::seconds(300));
  Alone group(Generation(1));
  Need(CheckpointEngine::Claim(files, root, "bench", group.generation(), RealClock()));
  CheckpointOptions options;
  options.root = root;
  options.job = "bench";
  options.staging_bytes_max = budget_bytes;
  auto engine = CheckpointEngine::Open(options, group, files, RealClock(), {},
                                       Deadline::After(std::chrono::seconds(30)));
  Need(engine.status());
  (*engine)->Add("model", std::make_unique<Tensors>(state_bytes));
  Need((*engine)->Restore().status());
  ::malloc_trim(0);
  const std::int64_t before = StatusBytes("VmRSS:");
  std::ofstream("/proc/self/clear_refs") << 5;  // the highest value starts anew: proc(5)
  for (std::int64_t step = 0; step < 2; ++step) {
    (*engine)->BeginStep(step);
    Need((*engine)->BeforeUpdate());
    Need((*engine)->EndStep(step));
    Need((*engine)->Save(step));
    Need((*engine)->Wait(Deadline::After(std::chrono::seconds(300))));
  }
  const std::int64_t peak = StatusBytes("VmHWM:");
  Need((*engine)->Close(Deadline::After(std::chrono::seconds(60))));
  return peak - before;
}

double InProcess(const std::string& self, std::int64_t state_bytes, std::int64_t budget_bytes) {
  const std::string command = fmt::format("{} {} {}", self, state_bytes, budget_bytes);
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  double bytes = 0;
  const int found = pipe == nullptr ? 0 : std::fscanf(pipe, "%lf", &bytes);
  if (pipe != nullptr) ::pclose(pipe);
  if (found != 1) Need(Status(Code::kInternal, command + " did not print what was added"));
  return bytes;
}

int All(const std::string& self) {
  bool kept = true;
  for (const std::int64_t budget : kBudgets) {
    std::vector<double> values;
    std::vector<double> limits;
    const double limit = static_cast<double>(budget > 0 ? budget : BenchBytes());
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      const double added = InProcess(self, BenchBytes(), budget);
      kept = kept && (budget == 0 || added <= limit);
      values.push_back(added / kMiB);
      limits.push_back(limit / kMiB);
    }
    Report(
        {.id = "save_memory",
         .what = fmt::format("{} MiB of state, what a save adds", BenchBytes() >> 20),
         .unit = "MiB",
         .limit_is = budget > 0 ? "staging_bytes_max" : "without a budget: one copy of the state",
         .goal = budget > 0 ? 1.0 : 1.05,
         .less_is_better = true},
        values, limits);
  }
  return kept ? 0 : 1;
}

int One(std::int64_t state_bytes, std::int64_t budget_bytes) {
  const std::int64_t added = AddedBySave(state_bytes, budget_bytes);
  fmt::print("{}\n", added);
  return budget_bytes == 0 || added <= budget_bytes ? 0 : 1;
}

}  // namespace
}  // namespace perdure::bench

int main(int argc, char** argv) {
  perdure::Log().set_level(spdlog::level::err);
  if (argc == 3) return perdure::bench::One(std::atoll(argv[1]), std::atoll(argv[2]));
  return perdure::bench::All(std::filesystem::read_symlink("/proc/self/exe").string());
}
