// What reaches the agent's main thread from the ports' threads, and what those threads may know of
// the ranks: who is expected with which token, and what is fenced.
//
// Reports are kept as the latest one per rank. Everything else waits in one queue, in order.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "base/posix.h"
#include "control/agent_link.h"

namespace perdure::agent {

using RankKey = std::pair<Generation, Rank>;

struct SupervisorConnected {
  SupervisorHello hello;
};
struct SupervisorDisconnected {};
struct SupervisorRefused {
  Status status;
};
struct RankConnected {
  RankKey key;
  std::int64_t pid = 0;
};
struct RankSaid {
  RankKey key;
  RankMessage message;  // not a report
};
struct RankDisconnected {
  RankKey key;
};

using InboxItem = std::variant<SupervisorConnected, SupervisorDisconnected, SupervisorRefused,
                               SupervisorCommand, RankConnected, RankSaid, RankDisconnected>;

// Messages of ranks that wait; more are dropped and counted. Connections and commands are few and
// always kept.
inline constexpr std::size_t kInboxMax = 8192;

class Inbox {
 public:
  // `clock` stamps reports. Fails only when the kernel has no eventfd left.
  static Result<std::unique_ptr<Inbox>> Create(const Clock& clock);

  // Readable when something waits.
  int wake_fd() const { return wake_.get(); }

  // ---- the ports' threads
  Result<RankWelcome> Admit(const RankHello& hello);
  void Say(Generation generation, Rank rank, const RankMessage& message);
  void Left(Generation generation, Rank rank);
  void Push(InboxItem item);
  std::vector<RunningRank> Running() const;

  // ---- the main thread
  std::deque<InboxItem> TakeAll();
  void Expect(const RankKey& key, std::string token, RankWelcome welcome);
  void FenceUpTo(Generation generation, const std::string& reason);
  void SetRunning(std::vector<RunningRank> running);
  bool IsConnected(const RankKey& key) const;
  struct Latest {
    RankReport report;
    MonotonicTime arrived;
  };
  std::optional<Latest> LatestReport(const RankKey& key) const;
  std::uint64_t dropped() const;

 private:
  struct Expected {
    std::string token;
    RankWelcome welcome;
    bool connected = false;
    std::optional<Latest> latest;
  };

  Inbox(const Clock& clock, UniqueFd wake) : clock_(clock), wake_(std::move(wake)) {}
  void Wake() const;

  const Clock& clock_;
  const UniqueFd wake_;

  mutable Mutex mutex_;
  std::deque<InboxItem> items_ PERDURE_GUARDED_BY(mutex_);
  std::map<RankKey, Expected> expected_ PERDURE_GUARDED_BY(mutex_);
  std::vector<RunningRank> running_ PERDURE_GUARDED_BY(mutex_);
  Generation fenced_up_to_ PERDURE_GUARDED_BY(mutex_);
  std::string fence_reason_ PERDURE_GUARDED_BY(mutex_);
  std::uint64_t dropped_ PERDURE_GUARDED_BY(mutex_) = 0;
};

}  // namespace perdure::agent
