// ResumableSampler: step -> stream positions (stream.h) -> epoch and place -> sample
// (permutation.h).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "data/permutation.h"
#include "data/stream.h"
#include "perdure/data.h"

namespace perdure {
namespace {

constexpr const char* kBlobName = "stream";
constexpr int kFormat = 1;

// What the blob "stream" holds. Field names are part of the checkpoint's format.
struct SavedStream {
  std::string dataset_id;
  std::int64_t size = 0;
  std::uint64_t seed = 0;
  bool shuffle = true;
  Stream stream;
};

Result<std::string> Encode(const SavedStream& saved) {
  if (saved.stream.base_position > std::numeric_limits<std::int64_t>::max()) {
    return Status(Code::kResourceExhausted, "sampler: the stream position outgrew 63 bits");
  }
  nlohmann::ordered_json skipped = nlohmann::ordered_json::array();
  for (const SampleRange& range : saved.stream.skipped) {
    skipped.push_back({range.begin, range.end});
  }
  const nlohmann::ordered_json json = {
      {"format", kFormat},
      {"dataset_id", saved.dataset_id},
      {"size", saved.size},
      {"seed", saved.seed},
      {"shuffle", saved.shuffle},
      {"global_batch", saved.stream.batch},
      {"base_step", saved.stream.base_step},
      {"base_position", static_cast<std::int64_t>(saved.stream.base_position)},
      {"skipped", skipped},
  };
  try {
    return json.dump();
  } catch (const nlohmann::json::exception&) {
    return Status(Code::kInvalidArgument, "sampler: dataset_id is not valid UTF-8");
  }
}

Result<SavedStream> Decode(const std::string& bytes) {
  try {
    const nlohmann::json json = nlohmann::json::parse(bytes);
    if (const int format = json.at("format").get<int>(); format != kFormat) {
      return Status(Code::kInvalidArgument,
                    fmt::format("sampler: the checkpoint's stream has format {}, this program "
                                "reads format {}; use the version that wrote it",
                                format, kFormat));
    }
    SavedStream saved;
    saved.dataset_id = json.at("dataset_id").get<std::string>();
    saved.size = json.at("size").get<std::int64_t>();
    saved.seed = json.at("seed").get<std::uint64_t>();
    saved.shuffle = json.at("shuffle").get<bool>();
    saved.stream.batch = json.at("global_batch").get<std::int64_t>();
    saved.stream.base_step = json.at("base_step").get<std::int64_t>();
    saved.stream.base_position = json.at("base_position").get<std::int64_t>();
    std::int64_t end = 0;
    for (const nlohmann::json& range : json.at("skipped")) {
      saved.stream.skipped.push_back(
          {range.at(0).get<std::int64_t>(), range.at(1).get<std::int64_t>()});
      const SampleRange& added = saved.stream.skipped.back();
      if (added.begin < end || added.end <= added.begin) {
        return Status(Code::kDataLoss,
                      "sampler: the saved stream's skipped ranges are not in order");
      }
      end = added.end;
    }
    if (saved.size < 1 || saved.stream.batch < 1 || saved.stream.base_step < 0 ||
        saved.stream.base_position < 0) {
      return Status(Code::kDataLoss, "sampler: the saved stream has a number out of range");
    }
    return saved;
  } catch (const nlohmann::json::exception& error) {
    return Status(Code::kDataLoss,
                  fmt::format("sampler: the saved stream cannot be read: {}", error.what()));
  }
}

Status Check(std::int64_t size, const SamplerOptions& options, const DataPlacement& placement) {
  const auto wrong = [](std::string message) {
    return Status(Code::kInvalidArgument, "sampler: " + std::move(message));
  };
  if (size < 1) return wrong(fmt::format("the data set has {} samples, needs at least 1", size));
  if (options.global_batch < 1) {
    return wrong(fmt::format("global_batch is {}, must be at least 1", options.global_batch));
  }
  if (placement.data_parallel_size < 1 || placement.data_parallel_rank < 0 ||
      placement.data_parallel_rank >= placement.data_parallel_size) {
    return wrong(fmt::format("data-parallel rank {} of {} does not exist",
                             placement.data_parallel_rank, placement.data_parallel_size));
  }
  if (options.global_batch % placement.data_parallel_size != 0) {
    return wrong(fmt::format(
        "global_batch {} cannot be shared evenly by {} data-parallel ranks; "
        "use a multiple of {}",
        options.global_batch, placement.data_parallel_size, placement.data_parallel_size));
  }
  if (placement.lineage == nullptr) return wrong("the placement has no lineage");
  return Ok();
}

std::uint64_t EpochSeed(std::uint64_t seed, StreamPosition epoch) {
  const auto low = static_cast<std::uint64_t>(epoch);
  const auto high = static_cast<std::uint64_t>(epoch >> 64);
  return Mix64(Mix64(Mix64(seed) ^ low) ^ high);
}

}  // namespace

class ResumableSampler::Impl {
 public:
  Impl(std::int64_t size, SamplerOptions options, DataPlacement placement)
      : size_(size),
        options_(std::move(options)),
        placement_(std::move(placement)),
        status_(Check(size_, options_, placement_)) {
    saved_.batch = options_.global_batch;
  }

  const Status& status() const { return status_; }

  std::vector<std::int64_t> Slice(std::int64_t step, bool whole_batch) const {
    if (!status_.ok()) return {};
    const std::shared_ptr<const Stream> stream = Current();
    if (step < stream->base_step) return {};
    std::int64_t count = options_.global_batch;
    std::int64_t first = 0;
    if (!whole_batch) {
      count /= placement_.data_parallel_size;
      first = count * placement_.data_parallel_rank;
    }
    const StreamPosition begin =
        static_cast<StreamPosition>(step - stream->base_step) * options_.global_batch + first;
    std::vector<std::int64_t> samples;
    samples.reserve(static_cast<std::size_t>(count));
    StreamPosition epoch = -1;
    std::optional<Permutation> order;
    for (std::int64_t i = 0; i < count; ++i) {
      const StreamPosition position = stream->At(begin + i);
      const std::int64_t place = static_cast<std::int64_t>(position % size_);
      if (!options_.shuffle) {
        samples.push_back(place);
        continue;
      }
      if (position / size_ != epoch) {
        epoch = position / size_;
        order.emplace(size_, EpochSeed(options_.seed, epoch));
      }
      samples.push_back((*order)(place));
    }
    return samples;
  }

  Result<State> Describe() const {
    PERDURE_RETURN_IF_ERROR(status_);
    PERDURE_ASSIGN_OR_RETURN(std::string bytes, Encode({options_.dataset_id, size_, options_.seed,
                                                        options_.shuffle, *Current()}));
    State state;
    BlobEntry blob;
    blob.name = kBlobName;
    blob.bytes = std::move(bytes);
    state.blobs.push_back(std::move(blob));
    return state;
  }

  Status FinishRestore(const std::vector<BlobEntry>& blobs) {
    PERDURE_RETURN_IF_ERROR(status_);
    for (const BlobEntry& blob : blobs) {
      if (blob.name != kBlobName) continue;
      PERDURE_ASSIGN_OR_RETURN(const SavedStream saved, Decode(blob.bytes));
      PERDURE_RETURN_IF_ERROR(Compare(saved));
      MutexLock lock(mutex_);
      saved_ = saved.stream;
      stream_.reset();
      return Ok();
    }
    return Status(Code::kInvalidArgument,
                  "sampler: the checkpoint holds no \"stream\"; it was not saved by a sampler");
  }

 private:
  Status Compare(const SavedStream& saved) const {
    std::vector<std::string> differences;
    const auto compare = [&](std::string_view what, const auto& was, const auto& is) {
      if (was != is) {
        differences.push_back(fmt::format("{} was {:?}, is {:?}", what, was, is));
      }
    };
    const auto compare_numbers = [&](std::string_view what, auto was, auto is) {
      if (was != is) differences.push_back(fmt::format("{} was {}, is {}", what, was, is));
    };
    compare("dataset_id", saved.dataset_id, options_.dataset_id);
    compare_numbers("number of samples", saved.size, size_);
    compare_numbers("seed", saved.seed, options_.seed);
    compare_numbers("shuffle", saved.shuffle, options_.shuffle);
    compare_numbers("global_batch", saved.stream.batch, options_.global_batch);
    if (differences.empty() || options_.allow_change) return Ok();
    return Status(Code::kInvalidArgument,
                  fmt::format("sampler: not the data of the checkpoint: {}; set "
                              "SamplerOptions::allow_change to go on all the same",
                              fmt::join(differences, ", ")));
  }

  std::shared_ptr<const Stream> Current() const {
    MutexLock lock(mutex_);
    std::shared_ptr<const DataLineage::Facts> facts = placement_.lineage->Get();
    if (stream_ == nullptr || facts != facts_) {
      facts_ = std::move(facts);
      stream_ = std::make_shared<const Stream>(Resume(saved_,
                                                      std::max(facts_->next_step, saved_.base_step),
                                                      options_.global_batch, facts_->skipped));
    }
    return stream_;
  }

  const std::int64_t size_;
  const SamplerOptions options_;
  const DataPlacement placement_;
  const Status status_;

  mutable Mutex mutex_;
  Stream saved_ PERDURE_GUARDED_BY(mutex_);  // of the checkpoint; at first that of a fresh run
  // `saved_` resumed with `facts_`; null when it must be made again.
  mutable std::shared_ptr<const Stream> stream_ PERDURE_GUARDED_BY(mutex_);
  mutable std::shared_ptr<const DataLineage::Facts> facts_ PERDURE_GUARDED_BY(mutex_);
};

ResumableSampler::ResumableSampler(std::int64_t size, SamplerOptions options,
                                   DataPlacement placement)
    : impl_(std::make_unique<Impl>(size, std::move(options), std::move(placement))) {}
ResumableSampler::~ResumableSampler() = default;

Status ResumableSampler::status() const {
  return impl_->status();
}

std::vector<std::int64_t> ResumableSampler::At(std::int64_t step) const {
  return impl_->Slice(step, false);
}

std::vector<std::int64_t> ResumableSampler::GlobalAt(std::int64_t step) const {
  return impl_->Slice(step, true);
}

Result<State> ResumableSampler::Describe() {
  return impl_->Describe();
}

Status ResumableSampler::FinishRestore(const std::vector<BlobEntry>& blobs) {
  return impl_->FinishRestore(blobs);
}

}  // namespace perdure
