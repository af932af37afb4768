// Interleavings chosen by the test: several actors work on one set of files, and a scheduler says
// who makes the next storage step. Only one actor runs at a time; it keeps its turn until the
// schedule takes it away at one of its steps, or until it is done.
//
// A step here is a call by which actors can notice or disturb each other: listing a directory,
// opening a file, and every change of a name that another one may know. Creating, writing and
// syncing files is no step: new files have names that nobody else uses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "storage/files.h"

namespace perdure {

// At step number `at` (counted over all actors, from 1) the turn goes to `actor`, when that one is
// not done yet.
struct Switch {
  std::size_t at = 0;
  int actor = 0;
};

class Turns {
 public:
  // `switches` in ascending order. Nobody waits before Begin.
  Turns(int actors, int first, std::vector<Switch> switches)
      : done_(static_cast<std::size_t>(actors), false),
        turn_(first),
        switches_(std::move(switches)) {}

  void Begin() {
    MutexLock lock(mutex_);
    begun_ = true;
  }

  // An actor begins its part.
  void Start(int actor) {
    MutexLock lock(mutex_);
    WaitForTurn(actor);
  }

  // Before an actor's step.
  void Step(int actor) {
    MutexLock lock(mutex_);
    if (!begun_) return;
    ++steps_;
    if (!switches_.empty() && switches_.front().at == steps_) {
      const int next = switches_.front().actor;
      switches_.erase(switches_.begin());
      if (!done_[static_cast<std::size_t>(next)]) turn_ = next;
      changed_.NotifyAll();
    }
    WaitForTurn(actor);
  }

  void Finish(int actor) {
    MutexLock lock(mutex_);
    done_[static_cast<std::size_t>(actor)] = true;
    const auto next = std::find(done_.begin(), done_.end(), false);
    if (next != done_.end()) turn_ = static_cast<int>(next - done_.begin());
    changed_.NotifyAll();
  }

  std::size_t steps() const {
    MutexLock lock(mutex_);
    return steps_;
  }

 private:
  void WaitForTurn(int actor) PERDURE_REQUIRES(mutex_) {
    const Deadline deadline = Deadline::After(std::chrono::seconds(60));
    while (turn_ != actor) {
      PERDURE_CHECK(changed_.WaitUntil(mutex_, deadline) || turn_ == actor,
                    "an actor gives its turn back");
    }
  }

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<bool> done_ PERDURE_GUARDED_BY(mutex_);
  bool begun_ PERDURE_GUARDED_BY(mutex_) = false;
  int turn_ PERDURE_GUARDED_BY(mutex_);
  std::size_t steps_ PERDURE_GUARDED_BY(mutex_) = 0;
  std::vector<Switch> switches_ PERDURE_GUARDED_BY(mutex_);
};

// One actor's view of the files.
class TurnFiles final : public Files {
 public:
  TurnFiles(Files& base, Turns& turns, int actor) : base_(base), turns_(turns), actor_(actor) {}

  Result<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    return base_.Create(path);
  }
  Result<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    turns_.Step(actor_);
    return base_.Open(path);
  }
  Result<std::vector<DirectoryEntry>> List(const std::string& directory) override {
    turns_.Step(actor_);
    return base_.List(directory);
  }
  Result<FileInfo> Info(const std::string& path) override { return base_.Info(path); }
  Status MakeDirectory(const std::string& path) override {
    turns_.Step(actor_);
    return base_.MakeDirectory(path);
  }
  Status Rename(const std::string& from, const std::string& to, Replace replace) override {
    turns_.Step(actor_);
    return base_.Rename(from, to, replace);
  }
  Status Link(const std::string& from, const std::string& to) override {
    turns_.Step(actor_);
    return base_.Link(from, to);
  }
  Status Remove(const std::string& path) override {
    turns_.Step(actor_);
    return base_.Remove(path);
  }
  Status SyncDirectory(const std::string& directory) override {
    return base_.SyncDirectory(directory);
  }

 private:
  Files& base_;
  Turns& turns_;
  const int actor_;
};

}  // namespace perdure
