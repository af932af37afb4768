#include "checkpoint/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/parse.h"
#include "checkpoint/json.h"

namespace perdure {
namespace {

using Json = nlohmann::json;

constexpr Duration kStorePause = std::chrono::milliseconds(200);
// For saying that this rank's loop is over.
constexpr Duration kFinishMax = std::chrono::seconds(5);
constexpr const char* kDone = "done";

std::string RoundPrefix(std::int64_t round) {
  return fmt::format("/ckpt/agree/{}/", round);
}

std::string Key(std::string_view what, std::int64_t round) {
  return RoundPrefix(round) + std::string(what);
}

std::string AnswerKey(std::int64_t round, int rank) {
  return fmt::format("{}answer/{}", RoundPrefix(round), rank);
}

std::string DecisionText(std::optional<std::int64_t> step, bool leave, const std::string& reason,
                         const std::string& none) {
  return OneLine({{"save", step.has_value()},
                  {"step", step.value_or(0)},
                  {"leave", leave},
                  {"reason", reason},
                  {"none", none}});
}

}  // namespace

void StepAgreement::Start(std::int64_t next_step) {
  {
    MutexLock lock(mutex_);
    next_end_ = next_step;
    started_ = true;
  }
  watcher_ = Thread("ckpt-agree", [this] { Watch(); });
}

void StepAgreement::Request(std::string reason, bool leave) {
  MutexLock lock(mutex_);
  if (wanted_.has_value() && wanted_->leave && !leave) return;
  wanted_ = Want{std::move(reason), leave};
}

void StepAgreement::Begin(std::int64_t step) {
  MutexLock lock(mutex_);
  next_end_ = step;
}

Result<StepAgreement::Decision> StepAgreement::PassEnd(std::int64_t step) {
  const Deadline deadline = Deadline::After(2 * patience_, exchange_.clock());
  MutexLock lock(mutex_);
  while (pledge_.has_value() && step >= *pledge_ && broken_.ok()) {
    if (!changed_.WaitUntil(mutex_, deadline) && pledge_.has_value()) {
      return Status(Code::kDeadlineExceeded,
                    "the ranks could not agree on the step of a requested checkpoint in time");
    }
  }
  PERDURE_RETURN_IF_ERROR(broken_);
  next_end_ = step + 1;
  Decision decision;
  while (!agreed_.empty() && agreed_.front().step <= step) {
    // A step below this one cannot be: the pledge held it back. Except "leave without a save".
    const Decision& front = agreed_.front().decision;
    decision.save = decision.save || front.save;
    decision.leave = decision.leave || front.leave;
    decision.reason = front.reason;
    agreed_.pop_front();
  }
  return decision;
}

void StepAgreement::Finish(Deadline deadline) {
  const Deadline patience = Earlier(deadline, Deadline::After(kFinishMax, exchange_.clock()));
  std::int64_t round = 0;
  {
    MutexLock lock(mutex_);
    const bool again = std::exchange(finished_, true);
    if (again || !started_ || stopping_) return;
    while (in_round_) {
      // What was decided in it, or will be, is not ours to change.
      if (!changed_.WaitUntil(mutex_, patience) && in_round_) return;
    }
    round = round_;
  }
  // Best effort, and the same words as the watcher's, should it come to that round after all.
  const int rank = static_cast<int>(exchange_.rank().value());
  Status told = exchange_.Put(AnswerKey(round, rank), kDone, patience);
  if (told.ok() && exchange_.is_rank_0()) {
    told =
        exchange_.Put(Key("decision", round),
                      DecisionText({}, false, "", "rank 0 has ended its training loop"), patience);
  }
  if (!told.ok()) Log().debug("the end of the training loop was not told: {}", told.message());
}

void StepAgreement::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  watcher_.Join();
}

void StepAgreement::Watch() {
  for (std::int64_t round = 0;; ++round) {
    const Status status = RunRound(round);
    MutexLock lock(mutex_);
    in_round_ = false;
    if (status.ok()) {
      round_ = round + 1;
      changed_.NotifyAll();
      continue;
    }
    if (!stopping_ && pledge_.has_value()) {
      broken_ = status.WithContext("agreeing on the step of a requested checkpoint");
    }
    pledge_.reset();
    changed_.NotifyAll();
    return;
  }
}

Status StepAgreement::RunRound(std::int64_t round) {
  // 1
  std::string want;
  bool posted = false;
  for (;;) {
    std::optional<Want> mine;
    {
      MutexLock lock(mutex_);
      if (stopping_) return Status(Code::kAborted, "closing");
      mine = wanted_;
    }
    if (mine.has_value() && !posted) {
      const std::string text = OneLine({{"reason", mine->reason}, {"leave", mine->leave}});
      PERDURE_RETURN_IF_ERROR(
          exchange_.Put(Key("want", round), text, Deadline::After(patience_, exchange_.clock())));
      posted = true;
    }
    Result<std::string> seen = exchange_.Glance(Key("want", round));
    if (seen.ok()) {
      want = std::move(seen).value();
      break;
    }
    if (seen.status().code() == Code::kUnavailable) {
      exchange_.Pause(kStorePause);  // the store does not answer just now
    } else if (seen.status().code() != Code::kDeadlineExceeded) {
      return seen.status();
    }
    if (exchange_.stopped()) return Status(Code::kAborted, "closing");
  }
  // 2
  std::string answer;
  {
    MutexLock lock(mutex_);
    if (finished_) {
      answer = kDone;
    } else {
      in_round_ = true;
      answer = std::to_string(next_end_);
      pledge_ = next_end_;
    }
  }
  const Deadline deadline = Deadline::After(2 * patience_, exchange_.clock());
  PERDURE_RETURN_IF_ERROR(exchange_.Put(
      AnswerKey(round, static_cast<int>(exchange_.rank().value())), answer, deadline));
  // 3
  if (exchange_.is_rank_0()) PERDURE_RETURN_IF_ERROR(Decide(round, want));
  // 4
  PERDURE_ASSIGN_OR_RETURN(const std::string decision,
                           exchange_.Get(Key("decision", round), deadline));
  Learn(decision);
  return Ok();
}

Status StepAgreement::Decide(std::int64_t round, const std::string& want) {
  const Deadline deadline = Deadline::After(patience_, exchange_.clock());
  PERDURE_ASSIGN_OR_RETURN(const Json asked, ParseJson(want, "want"));
  const std::string reason = asked.value("reason", "");
  const bool leave = asked.value("leave", false);
  std::int64_t step = -1;
  std::string none;
  bool done = somebody_done_;
  if (done) none = "a rank has ended its training loop";
  for (int rank = 0; rank < exchange_.size() && none.empty(); ++rank) {
    const Result<std::string> answer = exchange_.Get(AnswerKey(round, rank), deadline);
    if (answer.status().code() == Code::kDeadlineExceeded) {
      none = fmt::format("rank {} did not answer in time", rank);
      continue;
    }
    PERDURE_RETURN_IF_ERROR(answer.status());
    if (*answer == kDone) {
      done = true;
      somebody_done_ = true;
      none = fmt::format("rank {} has ended its training loop", rank);
      continue;
    }
    const std::optional<std::int64_t> at = ParseInteger(*answer);
    if (!at.has_value()) {
      return Status(
          Code::kInternal,
          fmt::format("rank {} answered \"{}\" where its step was asked for", rank, *answer));
    }
    step = std::max(step, *at);
  }
  // Who answers this round has read the decision of the one before.
  if (none.empty() && round > 0) exchange_.Forget(RoundPrefix(round - 1), deadline);
  const std::string text =
      DecisionText(none.empty() ? std::optional(step) : std::nullopt, leave && !done, reason, none);
  return exchange_.Put(Key("decision", round), text, Deadline::After(patience_, exchange_.clock()));
}

void StepAgreement::Learn(const std::string& text) {
  const Result<Json> json = ParseJson(text, "decision");
  MutexLock lock(mutex_);
  if (json.ok()) {
    const bool save = json->value("save", false);
    const bool leave = json->value("leave", false);
    const std::string none = json->value("none", "");
    std::string reason = json->value("reason", "");
    if (save) {
      const std::int64_t step = json->value("step", std::int64_t{0});
      agreed_.push_back({step, {true, leave, std::move(reason)}});
    } else {
      Log().warn("no checkpoint was taken for \"{}\": {}", reason, none);
      // At the next end, whichever it is.
      if (leave) agreed_.push_back({-1, {false, true, none}});
    }
    // Whoever wants to leave and got only a save asks again in the next round.
    if (wanted_.has_value() && (!wanted_->leave || leave || finished_ || !save)) wanted_.reset();
  }
  pledge_.reset();
  changed_.NotifyAll();
}

}  // namespace perdure
