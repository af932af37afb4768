#include <ATen/CPUGeneratorImpl.h>

#include <cstring>
#include <mutex>

#include "perdure/torch.h"
#include "torch/guard.h"

namespace perdure::torch {
namespace {

constexpr const char* kBlobName = "cpu";

class CpuRngState final : public Stateful {
 public:
  explicit CpuRngState(WorldChange on_world_change) : on_world_change_(on_world_change) {}

  Result<State> Describe() override {
    return Guarded("reading the random number generator", [this]() -> Result<State> {
      at::Generator generator = at::detail::getDefaultCPUGenerator();
      at::Tensor bytes;
      {
        const std::lock_guard<std::mutex> lock(generator.mutex());
        bytes = generator.get_state();
      }
      BlobEntry blob;
      blob.name = kBlobName;
      blob.bytes.assign(static_cast<const char*>(bytes.data_ptr()),
                        static_cast<std::size_t>(bytes.numel()));
      blob.holders = Holders::kPerRank;
      blob.changes = Changes::kAtAnyTime;
      blob.on_world_change = on_world_change_;
      State state;
      state.blobs.push_back(std::move(blob));
      return state;
    });
  }

  Status FinishRestore(const std::vector<BlobEntry>& blobs) override {
    for (const BlobEntry& blob : blobs) {
      if (blob.name == kBlobName) return Set(blob.bytes);
    }
    if (on_world_change_ == WorldChange::kRecompute) return Ok();
    return Status(Code::kInvalidArgument,
                  "the checkpoint holds no state \"cpu\" of a random number generator");
  }

 private:
  static Status Set(const std::string& bytes) {
    return Guarded("setting the random number generator", [&]() -> Status {
      at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
      std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
      at::Generator generator = at::detail::getDefaultCPUGenerator();
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(tensor);
      return Ok();
    });
  }

  const WorldChange on_world_change_;
};

}  // namespace

std::unique_ptr<Stateful> RngState(WorldChange on_world_change) {
  return std::make_unique<CpuRngState>(on_world_change);
}

}  // namespace perdure::torch
