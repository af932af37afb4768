// Which samples a rank reads at a step: a pure function of the step, so that prefetching cannot run
// ahead of the checkpoint and a resumed run consumes exactly the next sample (DATA-1).
//
// All ranks walk one endless stream of sample positions 0, 1, 2, …: position p is the sample at
// place p mod size in the order of epoch p / size. A step takes the next `global_batch` positions
// of the stream, whatever the number of ranks; the ranks share them out. Positions that the lineage
// skips are passed over and belong to no step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "perdure/checkpoint.h"
#include "perdure/export.h"
#include "perdure/status.h"
#include "perdure/tensor.h"

namespace perdure {

// What the restored lineage means for the data: shared by a session, which fills it in when it has
// restored, and its samplers. Thread-safe.
class PERDURE_API DataLineage {
 public:
  struct Facts {
    std::int64_t next_step = 0;        // the first step that this generation runs
    std::vector<SampleRange> skipped;  // stream positions that no step from there on may use
  };

  DataLineage();
  ~DataLineage();
  DataLineage(const DataLineage&) = delete;
  DataLineage& operator=(const DataLineage&) = delete;

  // Once per generation, when Restore is done and before the first step. Ranges may overlap, come
  // in any order and name positions that were consumed before: those stay consumed.
  void Set(Facts facts);
  // Before Set: step 0, nothing skipped.
  std::shared_ptr<const Facts> Get() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Which slice of the global batch is this rank's, and what the lineage says.
struct DataPlacement {
  int data_parallel_rank = 0;
  int data_parallel_size = 1;
  std::shared_ptr<DataLineage> lineage = std::make_shared<DataLineage>();
};

struct SamplerOptions {
  std::int64_t global_batch = 1;  // samples per step over all ranks; divisible by the ranks
  std::uint64_t seed = 0;
  bool shuffle = true;        // a new permutation per epoch; false: in order
  std::string dataset_id;     // what the samples are (UTF-8); a resumed run with another is refused
  bool allow_change = false;  // resume although data set, size, seed, shuffle or batch differ
};

// Every sample exactly once per epoch, whatever was interrupted and however the world size changed.
//
// With `allow_change` a resumed run goes on at the stream position that the saved one had reached,
// counted in samples; what "once per epoch" means across the change of a data set or a seed is then
// the caller's business.
class PERDURE_API ResumableSampler final : public Stateful {
 public:
  // `size`: number of samples, at least 1. An epoch that does not fill its last batch goes on with
  // the first samples of the next epoch. Bad arguments are kept and told by status() and
  // Describe().
  ResumableSampler(std::int64_t size, SamplerOptions options, DataPlacement placement);
  ~ResumableSampler() override;

  // OK, or the line that says what is wrong with the arguments.
  Status status() const;

  // The indices of this rank's samples at `step`, each in [0, size). Pure between two restores, and
  // thread-safe. Empty when status() is not OK, for a negative step, and for a step before the one
  // that the run resumed from.
  std::vector<std::int64_t> At(std::int64_t step) const;
  // All ranks' samples at `step`, in rank order: the same at any world size.
  std::vector<std::int64_t> GlobalAt(std::int64_t step) const;

  // A blob "stream" of a few hundred bytes, whatever the size of the data set.
  Result<State> Describe() override;
  // kInvalidArgument lists everything that differs.
  Status FinishRestore(const std::vector<BlobEntry>& blobs) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perdure
