#include "runtime/orders.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"

namespace perdure {

void Orders::Take(const RankCommand& command) {
  if (const auto* store = std::get_if<StoreAddress>(&command)) {
    MutexLock lock(mutex_);
    store_address_ = store->address;
    changed_.NotifyAll();
  } else if (const auto* dead = std::get_if<PeerDead>(&command)) {
    Act([peer = *dead](const Actions& actions) { actions.peer_dead(peer.rank, peer.reason); });
  } else if (const auto* fenced = std::get_if<Fenced>(&command)) {
    Leave(Status(Code::kFenced, fenced->reason));
  } else if (const auto* stop = std::get_if<StopRank>(&command)) {
    if (stop->abort) {
      Leave(Status(Code::kAborted, stop->reason));
    } else {
      Act([why = stop->reason](const Actions& actions) { actions.save(why, true); });
    }
  } else if (std::holds_alternative<CheckpointNow>(command)) {
    Act([](const Actions& actions) { actions.save("asked for by the supervisor", false); });
  } else if (const auto* dump = std::get_if<DumpRequest>(&command)) {
    Log().info("the supervisor asks for evidence: {}", dump->reason);
  }
}

void Orders::TakeSigterm() {
  if (leaving().has_value()) return;
  Act([](const Actions& actions) { actions.save("SIGTERM", true); });
}

void Orders::Leave(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (leaving_.has_value()) return;
    leaving_ = why;
    changed_.NotifyAll();
  }
  Act([why](const Actions& actions) { actions.leave(why); });
}

std::optional<Status> Orders::leaving() const {
  MutexLock lock(mutex_);
  return leaving_;
}

Result<std::string> Orders::WaitForStoreAddress(Deadline deadline) {
  MutexLock lock(mutex_);
  while (!store_address_.has_value()) {
    if (leaving_.has_value()) return *leaving_;
    if (!changed_.WaitUntil(mutex_, deadline) && !store_address_.has_value()) {
      return Status(Code::kDeadlineExceeded,
                    "rank 0 did not open the control store in time; its log says why");
    }
  }
  return *store_address_;
}

void Orders::Connect(Actions actions) {
  std::vector<Action> kept;
  {
    MutexLock lock(mutex_);
    actions_ = std::move(actions);
    connected_ = true;
    kept.swap(kept_);
  }
  for (Action& action : kept) Act(std::move(action));
}

void Orders::Disconnect() {
  MutexLock lock(mutex_);
  disconnected_ = true;
  while (running_ > 0) changed_.Wait(mutex_);
}

void Orders::Act(Action action) {
  Actions actions;
  {
    MutexLock lock(mutex_);
    if (disconnected_) return;
    if (!connected_) {
      kept_.push_back(std::move(action));
      return;
    }
    ++running_;
    actions = actions_;
  }
  action(actions);
  MutexLock lock(mutex_);
  --running_;
  changed_.NotifyAll();
}

}  // namespace perdure
