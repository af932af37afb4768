// The parts of a program's state under their names, and what they hold now as one list. Belongs to
// the training thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/foreign.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "perdure/ids.h"
#include "perdure/status.h"
#include "perdure/tensor.h"

namespace perdure {

// Where a piece of the structure lives in this process.
struct LocalEntry {
  std::size_t part = 0;
  std::string name;  // within its part
  TensorView view;   // tensors
  std::string blob;  // blobs
  Holders holders = Holders::kReplicated;
  Changes changes = Changes::kAtAnyTime;
  WorldChange on_world_change = WorldChange::kError;
  // The part is the checkpointer's own, so its views stay valid whatever the program lets go.
  bool owned = false;
  // The entry whose memory this one is another name for, seen in the same way (Piece::alias_of).
  std::optional<std::size_t> same_as = {};
};

struct LocalState {
  Structure structure;
  std::vector<LocalEntry> entries;  // one per piece, same order
};

class Parts {
 public:
  Parts(Rank rank, int world) : rank_(rank), world_(world) {}

  // Errors are kept and told by the next call that can tell them.
  void Add(std::string name, std::unique_ptr<Stateful> part);
  void Add(std::string name, Stateful& part);

  // A part that reads and writes files itself. Its name is one among those of the others.
  void AddForeign(ForeignPart part);
  const std::vector<ForeignPart>& foreign() const { return foreign_; }

  // Everything as it is now. kInvalidArgument names the entry that cannot be saved and why.
  Result<LocalState> Describe();

  // Tells each part what the checkpoint holds of it.
  Status PrepareRestore(const Manifest& manifest);
  // Hands each part its blobs, from `bytes_of(piece)`, and tells it of another number of ranks
  // and of what it is to `recompute`.
  Status FinishRestore(const LocalState& state, const std::vector<bool>& recompute, int saved_world,
                       const std::function<std::span<const std::byte>(std::size_t)>& bytes_of);

 private:
  struct Part {
    std::string name;
    std::unique_ptr<Stateful> owned;
    Stateful* stateful = nullptr;
  };
  void AddPart(Part part);
  Status CheckPartName(const std::string& name) const;
  static void FindAliases(LocalState& local);
  std::string FullName(const Part& part, const std::string& entry, Holders holders) const;

  const Rank rank_;
  const int world_;
  std::vector<Part> parts_;
  std::vector<ForeignPart> foreign_;
  Status failed_;
};

}  // namespace perdure
