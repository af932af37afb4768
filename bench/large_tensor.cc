// One tensor beyond every 32-bit limit, 5 GiB, really on the disk: saved by the whole engine and
// restored by the next generation, then written and read back by one call of the plain files, which
// has to be split because the kernel moves at most 0x7ffff000 bytes at once. Every byte is
// compared.
//
//   large_tensor [BYTES]     needs that much disk, and twice that much memory
#include <fmt/format.h>

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
#include "storage/bounded_files.h"
#include "storage/direct_files.h"
#include "storage/posix_files.h"

namespace perdure::bench {
namespace {

constexpr std::int64_t kStagingBytes = std::int64_t{256} << 20;

// Each 8 bytes say where they are, so that nothing can be in the wrong place unseen.
void Fill(std::vector<std::uint64_t>& words) {
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = i * 0x9e3779b97f4a7c15U;
}
void NeedFilled(const std::vector<std::uint64_t>& words, const std::string& by) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == i * 0x9e3779b97f4a7c15U) continue;
    Need(Status(Code::kDataLoss, fmt::format("{}: other bytes at {}", by, i * 8)));
  }
}

class OneTensor final : public Stateful {
 public:
  explicit OneTensor(std::vector<std::uint64_t>& words) : words_(words) {}
  Result<State> Describe() override {
    State state;
    TensorEntry entry;
    entry.name = "large";
    entry.view = {words_.data(), DType::kU64, {static_cast<std::int64_t>(words_.size())}};
    state.tensors.push_back(std::move(entry));
    return state;
  }

 private:
  std::vector<std::uint64_t>& words_;
};

double InGeneration(const std::string& root, Generation generation,
                    std::vector<std::uint64_t>& words, bool save) {
  BoundedFiles files(std::make_shared<DirectFiles>(), std::chrono::seconds(300));
  Alone group(generation);
  Need(CheckpointEngine::Claim(files, root, "bench", generation, RealClock()));
  CheckpointOptions options;
  options.root = root;
  options.job = "bench";
  options.staging_bytes_max = kStagingBytes;
  auto engine = CheckpointEngine::Open(options, group, files, RealClock(), {},
                                       Deadline::After(std::chrono::seconds(30)));
  Need(engine.status());
  (*engine)->Add("model", std::make_unique<OneTensor>(words));
  auto begin = std::chrono::steady_clock::now();
  const Result<RestoreReport> restored = (*engine)->Restore();
  Need(restored.status());
  if (save) {
    begin = std::chrono::steady_clock::now();
    Need((*engine)->Save(0));
    Need((*engine)->Wait(Deadline::After(std::chrono::seconds(300))));
  } else if (restored->fresh) {
    Need(Status(Code::kDataLoss, "nothing was restored"));
  }
  const double seconds = SecondsSince(begin);
  Need((*engine)->Close(Deadline::After(std::chrono::seconds(60))));
  return seconds;
}

void Run(std::int64_t bytes) {
  const DiskDirectory directory;
  const std::string root = directory.path() + "/checkpoints";
  WarmMemory(2 * bytes + kStagingBytes);
  std::vector<std::uint64_t> words(static_cast<std::size_t>(bytes / 8));
  const auto gb = static_cast<double>(bytes) / 1e9;
  Fill(words);
  const double saved = InGeneration(root, Generation(1), words, /*save=*/true);
  std::memset(words.data(), 0, words.size() * 8);
  const double restored = InGeneration(root, Generation(2), words, /*save=*/false);
  NeedFilled(words, "restore");
  std::filesystem::remove_all(root);

  PosixFiles files;
  const std::string path = directory.path() + "/plain";
  const auto begin = std::chrono::steady_clock::now();
  {
    const auto file = files.Create(path);
    Need(file.status());
    Need((*file)->Write(0, std::as_bytes(std::span(words))));
    Need((*file)->Sync());
    Need((*file)->Close());
  }
  const double plain = SecondsSince(begin);
  std::memset(words.data(), 0, words.size() * 8);
  const auto file = files.Open(path);
  Need(file.status());
  Need((*file)->Read(0, std::as_writable_bytes(std::span(words))));
  NeedFilled(words, "one read");
  fmt::print(
      "{{\"id\":\"large_tensor\",\"case\":\"one tensor of {} bytes, every byte compared\","
      "\"save_gb_per_s\":{:.3f},\"restore_gb_per_s\":{:.3f},\"plain_write_gb_per_s\":{:.3f}}}\n",
      bytes, gb / saved, gb / restored, gb / plain);
}

}  // namespace
}  // namespace perdure::bench

int main(int argc, char** argv) {
  perdure::Log().set_level(spdlog::level::err);
  constexpr std::int64_t kFiveGiB = std::int64_t{5} << 30;
  perdure::bench::Run(argc > 1 ? std::atoll(argv[1]) : kFiveGiB);
  return 0;
}
