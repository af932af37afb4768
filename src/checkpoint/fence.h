// Whether the program keeps to the fence that deferred capture rests on: BeforeUpdate, called in
// every step that changes the state. Pure.
#pragma once

#include <cstdint>

namespace perdure {

class FenceRecord {
 public:
  void BeginStep() { in_step_ = true; }
  void Fence() {
    fenced_ = in_step_;
    seen_ = seen_ || in_step_;
  }
  // The step is over; `updated`: the program did not say that it skipped the update. False: it may
  // have changed the state without the fence. Once is enough for the rest of the generation: a
  // program that forgets the fence now and then is one that must not be relied on.
  bool EndStep(bool updated) {
    const bool kept = fenced_ || !updated;
    if (!kept) missed_ = true;
    in_step_ = false;
    fenced_ = false;
    return kept;
  }

  // Whether what a save leaves to be copied later will stand behind a fence: one was seen, none was
  // missing, and the one of the present step has not been passed already.
  bool MayDefer() const { return seen_ && !missed_ && !fenced_; }
  bool missed() const { return missed_; }

 private:
  bool in_step_ = false;
  bool fenced_ = false;  // in the present step
  bool seen_ = false;
  bool missed_ = false;
};

}  // namespace perdure
