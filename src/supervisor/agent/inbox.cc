#include "supervisor/agent/inbox.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace perdure::agent {

Result<std::unique_ptr<Inbox>> Inbox::Create(const Clock& clock) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus(errno, "eventfd");
  return std::unique_ptr<Inbox>(new Inbox(clock, std::move(wake)));
}

void Inbox::Wake() const {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

Result<RankWelcome> Inbox::Admit(const RankHello& hello) {
  RankWelcome welcome;
  {
    MutexLock lock(mutex_);
    const auto found = expected_.find({hello.generation, hello.rank});
    if (hello.generation <= fenced_up_to_) {
      return Status(Code::kFenced, fmt::format("generation {} is fenced: {}",
                                               hello.generation.value(), fence_reason_));
    }
    if (found == expected_.end() || found->second.token != hello.token) {
      return Status(Code::kFailedPrecondition,
                    fmt::format("this agent started no rank {} of generation {} with that token",
                                hello.rank.value(), hello.generation.value()));
    }
    found->second.connected = true;
    welcome = found->second.welcome;
    items_.push_back(RankConnected{found->first, hello.pid});
  }
  Wake();
  return welcome;
}

void Inbox::Say(Generation generation, Rank rank, const RankMessage& message) {
  {
    MutexLock lock(mutex_);
    const auto found = expected_.find({generation, rank});
    if (found == expected_.end()) return;
    if (const auto* report = std::get_if<RankReport>(&message)) {
      found->second.latest = Latest{*report, clock_.Now()};
      return;
    }
    if (items_.size() >= kInboxMax) {
      ++dropped_;
      return;
    }
    items_.push_back(RankSaid{found->first, message});
  }
  Wake();
}

void Inbox::Left(Generation generation, Rank rank) {
  {
    MutexLock lock(mutex_);
    const auto found = expected_.find({generation, rank});
    if (found == expected_.end()) return;
    found->second.connected = false;
    items_.push_back(RankDisconnected{found->first});
  }
  Wake();
}

void Inbox::Push(InboxItem item) {
  {
    MutexLock lock(mutex_);
    items_.push_back(std::move(item));
  }
  Wake();
}

std::vector<RunningRank> Inbox::Running() const {
  MutexLock lock(mutex_);
  return running_;
}

std::deque<InboxItem> Inbox::TakeAll() {
  std::uint64_t count = 0;
  (void)!::read(wake_.get(), &count, sizeof(count));
  MutexLock lock(mutex_);
  return std::exchange(items_, {});
}

void Inbox::Expect(const RankKey& key, std::string token, RankWelcome welcome) {
  MutexLock lock(mutex_);
  expected_[key] = Expected{std::move(token), std::move(welcome), false, std::nullopt};
}

void Inbox::FenceUpTo(Generation generation, const std::string& reason) {
  MutexLock lock(mutex_);
  if (generation <= fenced_up_to_) return;
  fenced_up_to_ = generation;
  fence_reason_ = reason;
}

void Inbox::SetRunning(std::vector<RunningRank> running) {
  MutexLock lock(mutex_);
  running_ = std::move(running);
}

bool Inbox::IsConnected(const RankKey& key) const {
  MutexLock lock(mutex_);
  const auto found = expected_.find(key);
  return found != expected_.end() && found->second.connected;
}

std::optional<Inbox::Latest> Inbox::LatestReport(const RankKey& key) const {
  MutexLock lock(mutex_);
  const auto found = expected_.find(key);
  return found == expected_.end() ? std::nullopt : found->second.latest;
}

std::uint64_t Inbox::dropped() const {
  MutexLock lock(mutex_);
  return dropped_;
}

}  // namespace perdure::agent
