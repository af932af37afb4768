// What this rank has been told to do, by the supervisor or by SIGTERM, and whether it is leaving.
//
// Orders may arrive before the rooms they concern exist: they are kept, and carried out when the
// session connects its rooms. The first reason to leave stays the reason. Thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "control/link.h"
#include "perdure/status.h"

namespace perdure {

class Orders {
 public:
  // What the session does about an order. Called on the thread that brought the order (or that
  // connects), without a lock held, and must return quickly.
  struct Actions {
    std::function<void(const Status& why)> leave;
    std::function<void(Rank rank, const std::string& reason)> peer_dead;
    std::function<void(const std::string& reason, bool then_leave)> save;
  };

  // An order from the supervisor.
  void Take(const RankCommand& command);

  // SIGTERM. After an order to leave it means nothing new; without one it is a preemption: one
  // coordinated checkpoint, then leave.
  void TakeSigterm();

  // End everything and go, because of `why`.
  void Leave(const Status& why);
  // Set from the first Leave on.
  std::optional<Status> leaving() const;

  // Where the control store is, once the supervisor says so. The reason to leave, if that comes
  // first.
  Result<std::string> WaitForStoreAddress(Deadline deadline);

  // The rooms are there: what has been kept is carried out now, what follows at once.
  void Connect(Actions actions);
  // The rooms are about to go: returns when no action is running, and none will.
  void Disconnect();

 private:
  using Action = std::function<void(const Actions&)>;
  void Act(Action action);

  mutable Mutex mutex_;
  CondVar changed_;
  std::optional<std::string> store_address_ PERDURE_GUARDED_BY(mutex_);
  std::optional<Status> leaving_ PERDURE_GUARDED_BY(mutex_);
  bool connected_ PERDURE_GUARDED_BY(mutex_) = false;
  bool disconnected_ PERDURE_GUARDED_BY(mutex_) = false;
  int running_ PERDURE_GUARDED_BY(mutex_) = 0;
  Actions actions_ PERDURE_GUARDED_BY(mutex_);
  // Bounded by what can be said before the rooms exist: one entry per peer and a few more.
  std::vector<Action> kept_ PERDURE_GUARDED_BY(mutex_);
};

}  // namespace perdure
