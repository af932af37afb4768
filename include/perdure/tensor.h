// Tensors as Perdure sees them: memory that somebody else owns, with a type and a shape, and the
// parts of a program's state that can be saved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "perdure/export.h"
#include "perdure/status.h"

namespace perdure {

// The dtypes of the safetensors format. Perdure moves bytes and never converts: a dtype is a width
// and a tag. (Collectives additionally do arithmetic on a few of them, see comm.h.)
enum class DType : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

// Width in bits; below 8 for the sub-byte floats.
PERDURE_API int BitsOf(DType dtype);
// The safetensors name: "F32", "BF16", "F8_E4M3", …
PERDURE_API std::string_view NameOf(DType dtype);
PERDURE_API Result<DType> DTypeFromName(std::string_view name);

// Extents, slowest first. Empty for a 0-dim tensor, which has one element.
using Shape = std::vector<std::int64_t>;

// Product of the extents; an error when one is negative or the product overflows.
PERDURE_API Result<std::int64_t> ElementCount(const Shape& shape);
// Bytes of a packed tensor; an error on overflow or when the bits do not fill whole bytes.
PERDURE_API Result<std::int64_t> ByteCount(DType dtype, const Shape& shape);
// "[3, 4]".
PERDURE_API std::string ToString(const Shape& shape);

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

// Borrowed memory, valid as long as its owner says. Row-major and packed unless `strides` (in
// elements, one per extent) says otherwise.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  Shape strides = {};  // empty: packed
  DeviceKind device = DeviceKind::kCpu;
  int device_index = 0;
};

// When a part of the state changes. Decides how long a save may wait before it copies.
enum class Changes : std::uint8_t {
  kInUpdate,   // only between StepScope::BeforeUpdate and End (parameters, optimizer state); what
               // must keep still meanwhile is at the head of checkpoint.h
  kAtAnyTime,  // whenever user code runs (buffers, RNG, counters): copied inside End
};

// Who holds a part of the state.
enum class Holders : std::uint8_t {
  kReplicated,  // every rank holds the same bytes; written once; believed only after hashes agreed
  kSharded,     // this rank holds the piece at `offset` of a global tensor
  kPerRank,     // every rank has its own and they may differ (RNG, data reader)
};

// What becomes of something that every rank has of its own (Holders::kPerRank) when another number
// of ranks goes on from the checkpoint than saved it: rank 5's random numbers have no meaning when
// there is no rank 5, and none were saved for a rank that is new.
enum class WorldChange : std::uint8_t {
  kError,      // the restore is refused, naming it and what can be done
  kRecompute,  // it is not restored: the part makes it anew, see Stateful::WorldChanged
  kRank0,      // every rank gets what rank 0 had
};

// One named tensor of the state, and the piece of it that this rank holds.
struct TensorEntry {
  std::string name;    // unique within its Stateful
  TensorView view;     // this rank's memory
  Shape global_shape;  // empty together with `offset`: the view is the whole tensor
  Shape offset;        // where the view begins in the global tensor, per extent
  Holders holders = Holders::kReplicated;
  Changes changes = Changes::kInUpdate;
  WorldChange on_world_change = WorldChange::kError;  // kPerRank only
};

// Named bytes of the state: counters, RNG, anything that is not a tensor.
struct BlobEntry {
  std::string name;
  std::string bytes;
  Holders holders = Holders::kReplicated;  // kSharded has no meaning here
  Changes changes = Changes::kAtAnyTime;
  WorldChange on_world_change = WorldChange::kError;  // kPerRank only
};

struct State {
  std::vector<TensorEntry> tensors;
  std::vector<BlobEntry> blobs;
};

// What a checkpoint holds of one Stateful, before anything is read: names without the Stateful's
// own prefix, global shapes. What every rank has of its own is listed once; after a change of the
// number of ranks it is what rank 0 had.
struct SavedState {
  struct Tensor {
    std::string name;
    DType dtype;
    Shape global_shape;
  };
  std::vector<Tensor> tensors;
  std::vector<std::string> blobs;
};

// Part of a program's state that can be saved and brought back. Called by the Checkpointer, never
// from two threads at once, and never from another thread than the one that is inside Restore, End
// or Save.
class PERDURE_API Stateful {
 public:
  virtual ~Stateful() = default;

  // The state as it is now. Views stay valid and in place until the next call on this object: what
  // they point to is read by other threads meanwhile, so an object that was handed over to the
  // Checkpointer holds on to it.
  virtual Result<State> Describe() = 0;

  // Before a restore: what the checkpoint holds. Creates what the program creates lazily (optimizer
  // moments before the first step), so that Describe() then names it. May refuse.
  virtual Status PrepareRestore(const SavedState& saved) {
    (void)saved;
    return Ok();
  }

  // After every byte of every rank was verified and the tensors hold the restored values. `blobs`
  // are those of Describe(), with the saved bytes, less those that are to be recomputed.
  virtual Status FinishRestore(const std::vector<BlobEntry>& blobs) {
    (void)blobs;
    return Ok();
  }

  // After FinishRestore, and only when `saved_world` ranks saved what `world` ranks go on with.
  // `recompute` names the tensors and blobs with WorldChange::kRecompute: they hold what they held
  // before the restore.
  virtual Status WorldChanged(int saved_world, int world,
                              const std::vector<std::string>& recompute) {
    (void)saved_world;
    (void)world;
    (void)recompute;
    return Ok();
  }
};

}  // namespace perdure
