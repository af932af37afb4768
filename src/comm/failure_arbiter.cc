#include "comm/failure_arbiter.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"

namespace perdure {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Class = CommFailure::Class;

// How long one get of the watcher waits; Close ends it earlier.
constexpr seconds kWatchSlice{60};
constexpr milliseconds kStoreRetry{500};
// Alarms of one generation; more would mean that ranks accuse each other in a circle.
constexpr std::int64_t kAlarmsMax = 10000;

std::string CauseKey(const std::string& id) {
  return fmt::format("/comm/{}/first_cause", id);
}
std::string AlarmKey(std::int64_t number) {
  return fmt::format("/comm/alarm/{}", number);
}
std::string RollKey(const std::string& id, const std::string& call, std::int64_t rank) {
  return fmt::format("/comm/{}/roll/{}/{}", id, call, rank);
}

}  // namespace

FailureArbiter::FailureArbiter(Options options, std::unique_ptr<KeyValue> store)
    : options_(options),
      store_(std::move(store)),
      watcher_("perdure-verdict", [this] { Watch(); }) {}

FailureArbiter::~FailureArbiter() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    changed_.NotifyAll();
  }
  store_->Close();
  watcher_.Join();
}

void FailureArbiter::ReportPeerDead(Rank rank, const std::string& reason) {
  MutexLock lock(mutex_);
  for (const CommFailure::Suspect& told : told_dead_) {
    if (told.rank == rank) return;
  }
  told_dead_.push_back({rank, reason + " (told by the supervisor)"});
  for (auto& [id, channel] : channels_) {
    if (channel->Has(rank) && settled_.count(id) == 0) channel->OnPeerDead();
  }
  changed_.NotifyAll();
}

void FailureArbiter::Join(ArbitratedChannel& channel) {
  MutexLock lock(mutex_);
  channels_[channel.id()] = &channel;
  const auto settled = settled_.find(channel.id());
  if (settled != settled_.end()) {
    channel.OnVerdict(settled->second);
  } else if (std::any_of(told_dead_.begin(), told_dead_.end(),
                         [&](const auto& told) { return channel.Has(told.rank); })) {
    channel.OnPeerDead();
  }
}

void FailureArbiter::Leave(ArbitratedChannel& channel) {
  MutexLock lock(mutex_);
  const auto found = channels_.find(channel.id());
  if (found != channels_.end() && found->second == &channel) channels_.erase(found);
}

std::vector<CommProgress> FailureArbiter::Progress() {
  std::vector<CommProgress> all;
  MutexLock lock(mutex_);
  for (const auto& [id, channel] : channels_) all.push_back(channel->progress());
  return all;
}

Standing FailureArbiter::StandingIn(const std::string& id) {
  MutexLock lock(mutex_);
  const auto channel = channels_.find(id);
  if (channel == channels_.end()) return Standing{.present = false};
  Standing standing = channel->second->standing();
  // One lane: what runs in another communicator keeps this one's operations waiting.
  for (const auto& [other, busy] : channels_) {
    const Standing there = busy->standing();
    if (other == id || settled_.count(other) > 0 || standing.running() || !there.running())
      continue;
    standing.elsewhere = Elsewhere{other, busy->name(), there.started, there.call, there.waits_for};
  }
  return standing;
}

std::map<std::string, Standing> FailureArbiter::StandingsBeside(const std::string& id) {
  std::map<std::string, Standing> standings;
  MutexLock lock(mutex_);
  for (const auto& [other, channel] : channels_) {
    if (other != id) standings[other] = channel->standing();
  }
  return standings;
}

Verdict FailureArbiter::Judge(const std::string& id, const Evidence& evidence) {
  if (std::optional<Verdict> settled = Settled(id)) return *std::move(settled);
  Verdict accusation = evidence.own;
  if (std::optional<Verdict> told = FromSupervisor(evidence.own, evidence.members)) {
    accusation = *std::move(told);
  } else if (evidence.deadline || (evidence.mismatch && evidence.waits_for < 0)) {
    const Deadline roll_deadline = Deadline::After(kRollCallWait);
    // Somebody else may have found the cause already, and only its alarm is still on its way.
    if (std::optional<Verdict> known = KnownCause(id, evidence.members, roll_deadline))
      return Settle(id, *known);
    auto roll = CallRoll(id, evidence.members, roll_deadline);
    while (evidence.mismatch && roll.ok() && !AllAt(*roll, evidence.own.sequence) &&
           PauseBefore(roll_deadline)) {
      roll = CallRoll(id, evidence.members, roll_deadline);
    }
    if (!roll.ok()) {
      accusation = StoreIsSilent(evidence);
    } else if (evidence.mismatch) {
      accusation = WhoIsOdd(evidence.own, *roll);
    } else {
      accusation = WhoIsMissing(evidence.own, evidence.all_joined, evidence.waits_for, *roll,
                                StandingsBeside(id));
    }
    if (std::optional<Verdict> settled = Settled(id)) return *std::move(settled);
  }

  const Deadline limit = Deadline::After(kVerdictWait);
  const std::string text = Encode(accusation);
  const Result<std::string> held = store_->CompareAndSet(CauseKey(id), "", text, limit);
  if (held.ok()) {
    const Result<Verdict> verdict = DecodeVerdict(*held);
    const Verdict standing = Settle(id, verdict.ok() ? *verdict : accusation);
    if (*held == text) {
      const Status raised = Raise(
          json{{"kind", "first_cause"}, {"communicator", id}, {"verdict", text}}.dump(), limit);
      // The others find the cause in the store anyway when their own connections close.
      if (!raised.ok()) Log().debug("alarm not raised: {}", raised.ToString());
    }
    return standing;
  }

  // The store is gone or silent: the supervisor may still know.
  {
    MutexLock lock(mutex_);
    while (ToldDead(evidence.members) == nullptr && settled_.count(id) == 0 && !closing_ &&
           changed_.WaitUntil(mutex_, limit)) {
    }
  }
  if (std::optional<Verdict> told = FromSupervisor(evidence.own, evidence.members))
    return Settle(id, *told);
  return Settle(id, StoreIsSilent(evidence));
}

std::optional<Verdict> FailureArbiter::KnownCause(const std::string& id,
                                                  const std::vector<Rank>& members,
                                                  Deadline deadline) {
  if (std::optional<Verdict> told = FromSupervisor(Verdict{}, members)) return told;
  // Answered at once: a get whose wait is over when it arrives only looks.
  const Deadline now(RealClock().Now());
  const Result<std::string> held = store_->Get(CauseKey(id), Earlier(now, deadline));
  if (!held.ok()) return std::nullopt;
  Result<Verdict> verdict = DecodeVerdict(*held);
  if (!verdict.ok()) return std::nullopt;
  return *std::move(verdict);
}

Result<std::map<int, std::optional<Standing>>> FailureArbiter::CallRoll(
    const std::string& id, const std::vector<Rank>& members, Deadline deadline) {
  std::string call;
  {
    MutexLock lock(mutex_);
    call = fmt::format("{}-{}", options_.rank.value(), ++roll_calls_);
  }
  PERDURE_RETURN_IF_ERROR(
      Raise(json{{"kind", "roll_call"}, {"communicator", id}, {"call", call}}.dump(), deadline));
  std::map<int, std::optional<Standing>> roll;
  for (const Rank member : members) {
    if (member == options_.rank) continue;
    const auto peer = static_cast<int>(member.value());
    const Result<std::string> answer = store_->Get(RollKey(id, call, peer), deadline);
    if (answer.status().code() == Code::kUnavailable) return answer.status();
    roll[peer];
    if (!answer.ok()) continue;
    const Result<Standing> standing = DecodeStanding(*answer);
    if (standing.ok()) roll[peer] = *standing;
  }
  return roll;
}

Verdict FailureArbiter::StoreIsSilent(const Evidence& evidence) const {
  const std::vector<Rank>& members = evidence.members;
  const bool takes_part =
      std::find(members.begin(), members.end(), options_.store_host) != members.end();
  if (options_.rank == options_.store_host || !takes_part) return evidence.own;
  Verdict verdict = evidence.own;
  if (evidence.store_host_lost) {
    verdict.failure_class = Class::kPeerDead;
    verdict.suspects = {
        {options_.store_host, "its connection closed and the control store in it is gone"}};
  } else if (evidence.deadline) {
    verdict.failure_class = evidence.all_joined ? Class::kTimeout : Class::kNotJoined;
    verdict.suspects = {{options_.store_host,
                         "its process is connected but the control store in it does not answer "
                         "(stopped or cut off)"}};
  }
  return verdict;
}

Verdict FailureArbiter::Settle(const std::string& id, const Verdict& verdict) {
  MutexLock lock(mutex_);
  const auto [place, first] = settled_.emplace(id, verdict);
  if (first) {
    const auto channel = channels_.find(id);
    if (channel != channels_.end()) channel->second->OnVerdict(verdict);
    changed_.NotifyAll();
  }
  return place->second;
}

std::optional<Verdict> FailureArbiter::Settled(const std::string& id) {
  MutexLock lock(mutex_);
  const auto found = settled_.find(id);
  if (found == settled_.end()) return std::nullopt;
  return found->second;
}

std::optional<Verdict> FailureArbiter::FromSupervisor(const Verdict& own,
                                                      const std::vector<Rank>& members) {
  MutexLock lock(mutex_);
  const CommFailure::Suspect* const told = ToldDead(members);
  if (told == nullptr) return std::nullopt;
  Verdict verdict = own;
  verdict.failure_class = Class::kPeerDead;
  verdict.suspects = {*told};
  return verdict;
}

const CommFailure::Suspect* FailureArbiter::ToldDead(const std::vector<Rank>& members) const {
  for (const CommFailure::Suspect& told : told_dead_) {
    if (std::find(members.begin(), members.end(), told.rank) != members.end()) return &told;
  }
  return nullptr;
}

bool FailureArbiter::PauseBefore(Deadline deadline) {
  const Deadline again = Deadline::After(kRollCallAgain);
  MutexLock lock(mutex_);
  while (!closing_ && changed_.WaitUntil(mutex_, again)) {
  }
  return !closing_ && again < deadline;
}

Status FailureArbiter::Raise(const std::string& text, Deadline deadline) {
  std::int64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = next_alarm_;
  }
  for (; number < kAlarmsMax; ++number) {
    PERDURE_ASSIGN_OR_RETURN(const std::string held,
                             store_->CompareAndSet(AlarmKey(number), "", text, deadline));
    if (held == text) return Ok();
  }
  return Status(Code::kResourceExhausted, "too many alarms in one generation");
}

void FailureArbiter::Watch() {
  for (;;) {
    std::int64_t number = 0;
    {
      MutexLock lock(mutex_);
      if (closing_ || next_alarm_ >= kAlarmsMax) return;
      number = next_alarm_;
    }
    const Result<std::string> alarm = store_->Get(AlarmKey(number), Deadline::After(kWatchSlice));
    if (alarm.ok()) {
      OnAlarm(*alarm);
      MutexLock lock(mutex_);
      ++next_alarm_;
      continue;
    }
    const Code code = alarm.status().code();
    if (code == Code::kAborted || code == Code::kFenced) return;
    if (code == Code::kDeadlineExceeded) continue;
    // The store's host is gone or silent. Who runs an operation finds out by itself.
    MutexLock lock(mutex_);
    const Deadline retry = Deadline::After(kStoreRetry);
    while (!closing_ && changed_.WaitUntil(mutex_, retry)) {
    }
  }
}

void FailureArbiter::OnAlarm(const std::string& text) {
  try {
    const json alarm = json::parse(text);
    const auto kind = alarm.at("kind").get<std::string>();
    const auto id = alarm.at("communicator").get<std::string>();
    if (kind == "first_cause") {
      const Result<Verdict> verdict = DecodeVerdict(alarm.at("verdict").get<std::string>());
      if (verdict.ok()) Settle(id, *verdict);
      return;
    }
    const Standing standing = StandingIn(id);
    const Status answered =
        store_->Set(RollKey(id, alarm.at("call").get<std::string>(), options_.rank.value()),
                    Encode(standing), Deadline::After(kRollCallWait));
    if (!answered.ok()) Log().debug("roll call not answered: {}", answered.ToString());
  } catch (const json::exception& error) {
    Log().warn("an unreadable alarm in the control store: {}", error.what());
  }
}

}  // namespace perdure
