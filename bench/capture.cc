// What a save costs the training thread.
//   capture_blocking  copying the state at the end of a step, against memcpy of the same bytes
//   capture_deferred  a step that hides the copy behind its forward and backward, against the same
//                     step without a save
//
//   capture [capture_blocking] [capture_deferred]     none: both
//
// The state goes to memory files where /dev/shm is there: the question is the copy, not the disk.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "bench/alone.h"
#include "bench/report.h"
#include "checkpoint/engine.h"
#include "checkpoint/snapshot.h"
#include "storage/posix_files.h"

namespace perdure::bench {
namespace {

constexpr int kRepeats = 15;
constexpr int kWarmUps = 3;
constexpr int kTensors = 32;
constexpr std::int64_t kTensorBytes = std::int64_t{16} << 20;
constexpr std::int64_t kStateBytes = kTensors * kTensorBytes;

[[noreturn]] void Fail(const Status& status) {
  fmt::print(stderr, "capture: {}\n", status.ToString());
  std::exit(1);
}

void Need(const Status& status) {
  if (!status.ok()) Fail(status);
}

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class Model final : public Stateful {
 public:
  Model() {
    for (int i = 0; i < kTensors; ++i) {
      tensors_.emplace_back(static_cast<std::size_t>(kTensorBytes), static_cast<std::byte>(i));
    }
  }
  std::vector<std::vector<std::byte>>& tensors() { return tensors_; }

  Result<State> Describe() override {
    State state;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      TensorEntry entry;
      entry.name = fmt::format("w{}", i);
      entry.view = {tensors_[i].data(), DType::kU8, {kTensorBytes}};
      state.tensors.push_back(std::move(entry));
    }
    return state;
  }

 private:
  std::vector<std::vector<std::byte>> tensors_;
};

void Blocking() {
  Parts parts(Rank(0), 1);
  auto owned = std::make_unique<Model>();
  Model& model = *owned;
  parts.Add("model", std::move(owned));
  const Devices devices;
  CaptureStreams streams(devices);
  Staging staging;
  Staging plain;
  const Pairs pairs = MeasurePairs(kWarmUps, kRepeats, [&](int repeat) {
    auto begin = std::chrono::steady_clock::now();
    Result<LocalState> state = parts.Describe();
    Need(state.status());
    const Structure structure = state->structure;
    const auto snapshot =
        Snapshot::Take(std::move(state).value(),
                       {false, false, INT64_MAX, Deadline::After(std::chrono::seconds(60))},
                       staging, devices, streams);
    Need(snapshot.status());
    const double captured = SecondsSince(begin);

    if (repeat == 0) Need(plain.Shape(structure));
    begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < model.tensors().size(); ++i) {
      std::memcpy(plain.BytesOf(i).data(), model.tensors()[i].data(), kTensorBytes);
    }
    return std::pair(captured * 1e3, SecondsSince(begin) * 1e3);
  });
  Report({.id = "capture_blocking",
          .what = fmt::format("{} MiB in {} tensors", kStateBytes >> 20, kTensors),
          .unit = "ms",
          .limit_is = "memcpy of the same bytes",
          .goal = 1.1,
          .less_is_better = true},
         pairs);
}

// A step as long as `passes` passes of arithmetic over data that stays in the cache: a forward and
// backward that leave the memory to the copy.
double Compute(std::int64_t passes) {
  static std::vector<float> values(4096, 1.0F);
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    for (float& value : values) value = value * 0.999F + 0.001F;
  }
  return values[0];
}

void Deferred() {
  const std::string base = std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "/tmp";
  std::string pattern = base + "/perdure-bench-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) Fail(Status(Code::kUnavailable, "mkdtemp " + pattern));
  const std::string root = pattern + "/checkpoints";
  PosixFiles files;
  Alone group(Generation(1));
  Need(CheckpointEngine::Claim(files, root, "bench", Generation(1), RealClock()));
  CheckpointOptions options;
  options.root = root;
  options.job = "bench";
  options.keep_last_n = 2;
  double stalled = 0;
  auto stall_begin = std::chrono::steady_clock::now();
  CheckpointEvents events;
  events.on_stall = [&](bool begins) {
    if (begins) {
      stall_begin = std::chrono::steady_clock::now();
    } else {
      stalled += SecondsSince(stall_begin);
    }
  };
  {
    auto engine = CheckpointEngine::Open(options, group, files, RealClock(), events,
                                         Deadline::After(std::chrono::seconds(30)));
    Need(engine.status());
    (*engine)->Add("model", std::make_unique<Model>());
    Need((*engine)->Restore().status());
    // Long enough to hide the copy: some two seconds.
    auto begin = std::chrono::steady_clock::now();
    Compute(20000);
    const auto passes = static_cast<std::int64_t>(20000 * 2.0 / SecondsSince(begin));
    const auto step = [&](std::int64_t number) {
      begin = std::chrono::steady_clock::now();
      (*engine)->BeginStep(number);
      Compute(passes);
      Need((*engine)->BeforeUpdate());
      Need((*engine)->EndStep(number));
      return SecondsSince(begin);
    };
    std::vector<double> values;
    std::vector<double> limits;
    std::vector<double> stalls;
    std::int64_t number = 0;
    step(number++);
    constexpr int kSteps = 5;
    for (int repeat = 0; repeat < kSteps + 1; ++repeat) {
      const double without = step(number++);
      stalled = 0;
      const auto save = std::chrono::steady_clock::now();
      Need((*engine)->Save(number - 1));
      const double saving = SecondsSince(save);
      const double with = saving + step(number++);
      const double stood_still = stalled;
      Need((*engine)->Wait(Deadline::After(std::chrono::seconds(120))));
      if (repeat == 0) continue;  // the first copy also brings the memory
      values.push_back(with * 1e3);
      limits.push_back(without * 1e3);
      stalls.push_back((without + stood_still) * 1e3);
    }
    const std::string what =
        fmt::format("{} MiB behind a step of {:.1f} s", kStateBytes >> 20, Median(limits) / 1e3);
    Report({.id = "capture_deferred",
            .what = what + ", what the training thread stood still",
            .unit = "ms",
            .limit_is = "the step without a save",
            .goal = 1.01,
            .less_is_better = true},
           stalls, limits);
    Report({.id = "capture_deferred",
            .what = what + ", the whole step (the copy and the writing share its cores)",
            .unit = "ms",
            .limit_is = "the step without a save",
            .goal = 1.01,
            .less_is_better = true},
           values, limits);
    Need((*engine)->Close(Deadline::After(std::chrono::seconds(60))));
  }
  std::filesystem::remove_all(pattern);
}

}  // namespace
}  // namespace perdure::bench

int main(int argc, char** argv) {
  perdure::Log().set_level(spdlog::level::warn);
  std::vector<std::string> ids(argv + 1, argv + argc);
  if (ids.empty()) ids = {"capture_blocking", "capture_deferred"};
  for (const std::string& id : ids) {
    if (id == "capture_blocking") {
      perdure::bench::Blocking();
    } else if (id == "capture_deferred") {
      perdure::bench::Deferred();
    } else {
      fmt::print(stderr, "capture: no yardstick {} here\n", id);
      return 2;
    }
  }
}
