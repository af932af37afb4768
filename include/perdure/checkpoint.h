// Checkpoints: written behind the training loop, visible only when complete and durable, verified
// to the last byte when read back. The formats and the protocol are described in docs/formats/.
//
// What a program keeps still. When a save is due, State that changes at any time
// (Changes::kAtAnyTime) is copied before StepScope::End returns; the program may change it at once.
// State that changes in the update (Changes::kInUpdate) may be copied later, behind the forward and
// backward of the next step. Until StepScope::BeforeUpdate of the next step has returned, the
// program
//   - does not write to such a tensor: not in place, not by swapping weights for an evaluation (to
//     begin a Session::Phase between steps is a fence as well), not by averaging them after End
//   - leaves it where it is: no resizing, no moving to another device or dtype
// and what the part owns stays alive: a part that was handed over (the first form of Add) holds on
// to the memory of its views. Parts that are only borrowed may go with the training loop, so they
// are copied in End, always.
// This happens only to programs that call BeforeUpdate in every step (or end a step with
// update_skipped). One that leaves it out while a save relies on it makes that save fail; from then
// on its state is copied in End. Save, Wait, Close, a phase between steps and a step that is left
// early wait until what is being captured is captured. In debug builds a tensor that was changed
// nevertheless is found by hashes, and BeforeUpdate names it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "perdure/clock.h"
#include "perdure/export.h"
#include "perdure/ids.h"
#include "perdure/status.h"
#include "perdure/tensor.h"

namespace perdure {

// Half-open range of global sample positions that are never to be used (again): [begin, end).
struct SampleRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(const SampleRange& a, const SampleRange& b) {
    return a.begin == b.begin && a.end == b.end;
  }
};

struct RestoreReport {
  bool fresh = true;           // nothing was restored: the run begins at step 0
  std::int64_t next_step = 0;  // the first step to run
  Generation from_generation;  // who wrote the checkpoint (not fresh)
  std::string checkpoint;      // its directory name
  int saved_world = 0;         // by how many ranks it was saved (not fresh)
  std::int64_t bytes = 0;      // read and verified by this rank
  double seconds = 0;
  std::string initialized_from;  // fresh: the foreign files that gave the first values; or empty
  // Newer checkpoints that were not used, each with the reason.
  std::vector<std::pair<std::string, std::string>> passed_over;
};

// Owned by the Session. Called from the training thread, except where said.
class PERDURE_API Checkpointer {
 public:
  virtual ~Checkpointer() = default;

  // Names a part of the state. Entries of `part` appear in the checkpoint as "name.entry". Before
  // Restore; the second form borrows `part`, which must live until the last Restore, End or Save.
  virtual void Add(std::string name, std::unique_ptr<Stateful> part) = 0;
  virtual void Add(std::string name, Stateful& part) = 0;

  // A part that keeps files of its own format (a search index, another library's state). Before
  // Restore; its name is one among those of Add.
  //
  // `write` is called at every save, on each rank that has the part, inside End or Save: when it
  // returns, what the rank has of its own is in files below `directory`, which is there and empty.
  // The training stands still meanwhile. Afterwards the files are the checkpoint's: fsynced, hashed
  // and listed in its manifest, committed and retired with the rest. Plain files and directories
  // only; an error, or something thrown, fails the save on all ranks.
  // `read` is called once by a Restore that is not fresh, after every byte of every rank was
  // verified and the tensors were put back, with the directory of what this rank wrote; the files
  // are to be read, not to be changed. After a change of the world `on_world_change` decides:
  // kRank0 reads what rank 0 wrote, kRecompute reads nothing (see RestoreReport::saved_world).
  virtual void AddWriter(std::string name,
                         std::function<Status(const std::string& directory)> write,
                         std::function<Status(const std::string& directory)> read,
                         WorldChange on_world_change = WorldChange::kError) = 0;

  // Agrees with all ranks on the newest good checkpoint of the lineage, verifies every byte, and
  // only then changes the state of any rank (CKPT-6, CKPT-8). Once per session, before the first
  // step.
  virtual Result<RestoreReport> Restore() = 0;

  // Saves the state after `step` now (every rank must call it for the same step). Returns when the
  // state is captured, or will be by the next fence (see above). A save for a step already
  // committed or in flight joins it.
  virtual Status Save(std::int64_t step) = 0;

  // Until nothing is in flight: OK when the last save is durable, else why not. Any thread; one
  // that does not train waits for the training thread's fence, too.
  virtual Status Wait(Deadline deadline) = 0;

  // The step of the newest checkpoint known to be committed by this session; -1 before the first.
  virtual std::int64_t last_committed_step() const = 0;
};

}  // namespace perdure
