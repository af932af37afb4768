// What does a tensor cost a checkpoint, whatever its bytes? States of many tensors of 64 bytes each
// are saved by the whole engine until durable, and restored by the next generation, every byte
// checked; a run is linear in their number when a tensor of the larger state costs no more than one
// of the smaller.
//
//   tensor_count            10,000, 100,000 and 1,000,000 tensors, each size in a process of its
//   own tensor_count COUNT DIR  one size; prints its figures
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "bench/alone.h"
#include "bench/disk.h"
#include "bench/report.h"
#include "checkpoint/engine.h"
#include "storage/direct_files.h"

namespace perdure::bench {
namespace {

constexpr int kRepeats = 3;
constexpr std::int64_t kElements = 16;
constexpr std::int64_t kCounts[] = {10'000, 100'000, 1'000'000};

class ManyTensors final : public Stateful {
 public:
  ManyTensors(std::int64_t count, float first)
      : values_(static_cast<std::size_t>(count * kElements)) {
    for (std::size_t i = 0; i < values_.size(); ++i)
      values_[i] = first + static_cast<float>(i % 977);
  }
  const std::vector<float>& values() const { return values_; }

  Result<State> Describe() override {
    State state;
    state.tensors.reserve(values_.size() / kElements);
    for (std::size_t i = 0; i * kElements < values_.size(); ++i) {
      TensorEntry entry;
      entry.name = fmt::format("block.{}.weight", i);
      entry.view = {values_.data() + i * kElements, DType::kF32, {kElements}};
      state.tensors.push_back(std::move(entry));
    }
    return state;
  }

 private:
  std::vector<float> values_;
};

std::unique_ptr<CheckpointEngine> OpenEngine(const std::string& root, CommitGroup& group,
                                             Files& files) {
  Need(CheckpointEngine::Claim(files, root, "bench", group.generation(), RealClock()));
  CheckpointOptions options;
  options.root = root;
  options.job = "bench";
  auto engine = CheckpointEngine::Open(options, group, files, RealClock(), {},
                                       Deadline::After(std::chrono::seconds(30)));
  Need(engine.status());
  return std::move(engine).value();
}

void One(std::int64_t count, const std::string& root) {
  constexpr std::int64_t kBytesPerTensor = 4096;
  WarmMemory(count * kBytesPerTensor);
  DirectFiles files;
  double stalled = 0;
  double saved = 0;
  double restored = 0;
  const ManyTensors expected(count, 1.0F);
  {
    Alone group(Generation(1));
    const auto engine = OpenEngine(root, group, files);
    engine->Add("model", std::make_unique<ManyTensors>(count, 1.0F));
    Need(engine->Restore().status());
    const auto begin = std::chrono::steady_clock::now();
    Need(engine->Save(0));
    stalled = SecondsSince(begin);
    Need(engine->Wait(Deadline::After(std::chrono::seconds(300))));
    saved = SecondsSince(begin);
    Need(engine->Close(Deadline::After(std::chrono::seconds(60))));
  }
  {
    Alone group(Generation(2));
    const auto engine = OpenEngine(root, group, files);
    auto owned = std::make_unique<ManyTensors>(count, 2.0F);
    const ManyTensors& model = *owned;
    engine->Add("model", std::move(owned));
    const auto begin = std::chrono::steady_clock::now();
    const Result<RestoreReport> report = engine->Restore();
    restored = SecondsSince(begin);
    Need(report.status());
    if (report->fresh || model.values() != expected.values()) {
      Need(Status(Code::kDataLoss, "what came back is not what was saved"));
    }
    Need(engine->Close(Deadline::After(std::chrono::seconds(60))));
  }
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  fmt::print("{} {} {} {}\n", stalled, saved, restored, usage.ru_maxrss);
}

struct Figures {
  double stalled = 0;
  double saved = 0;
  double restored = 0;
  double peak_kib = 0;
};

Figures InProcess(const std::string& self, std::int64_t count) {
  const DiskDirectory directory;
  const std::string command = fmt::format("{} {} {}/checkpoints", self, count, directory.path());
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  Figures figures;
  const int found = pipe == nullptr
                        ? 0
                        : std::fscanf(pipe, "%lf %lf %lf %lf", &figures.stalled, &figures.saved,
                                      &figures.restored, &figures.peak_kib);
  if (pipe == nullptr || ::pclose(pipe) != 0 || found != 4) {
    Need(Status(Code::kInternal, command + " did not print its figures"));
  }
  return figures;
}

void All(const std::string& self) {
  std::vector<std::vector<Figures>> runs(std::size(kCounts));
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (std::size_t i = 0; i < runs.size(); ++i) runs[i].push_back(InProcess(self, kCounts[i]));
  }
  const auto report = [&](std::string_view what, const char* unit, double scale,
                          double Figures::*figure) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      // The smallest has nothing below it.
      const std::size_t below = i == 0 ? 0 : i - 1;
      std::vector<double> values;
      std::vector<double> limits;
      std::vector<double> whole;
      for (std::size_t n = 0; n < runs[i].size(); ++n) {
        values.push_back(runs[i][n].*figure * scale / static_cast<double>(kCounts[i]));
        limits.push_back(runs[below][n].*figure * scale / static_cast<double>(kCounts[below]));
        whole.push_back(runs[i][n].*figure);
      }
      Report({.id = "tensor_count",
              .what = fmt::format("{} tensors, {}: {:.3g} {} in all", kCounts[i], what,
                                  Median(whole) * (scale == 1e6 ? 1 : 1.0 / 1024),
                                  scale == 1e6 ? "s" : "MiB"),
              .unit = unit,
              .limit_is = fmt::format("a tensor of {}", kCounts[below]),
              .goal = 1.2,
              .less_is_better = true},
             values, limits);
    }
  };
  report("stall", "us per tensor", 1e6, &Figures::stalled);
  report("to durable", "us per tensor", 1e6, &Figures::saved);
  report("restore", "us per tensor", 1e6, &Figures::restored);
  report("peak memory", "KiB per tensor", 1, &Figures::peak_kib);
}

}  // namespace
}  // namespace perdure::bench

int main(int argc, char** argv) {
  perdure::Log().set_level(spdlog::level::warn);
  if (argc == 3) {
    perdure::bench::One(std::atoll(argv[1]), argv[2]);
  } else {
    perdure::bench::All(std::filesystem::read_symlink("/proc/self/exe").string());
  }
  return 0;
}
