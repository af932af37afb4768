// Finds the one culprit that all survivors name (COMM-2), whenever each of them notices.
//
// The protocol, over the control store:
// 1 A rank that meets trouble asks for a verdict before it closes anything, so that a connection
//   that closes without a word means that its process died.
// 2 After a deadline or a mismatch it first calls the roll: /comm/alarm/<n> reaches every rank's
//   watcher, and each answers with where it stands under /comm/<id>/roll/<call>/<rank>. Who does
//   not answer is stopped or cut off; who has not started the operation has not joined; who called
//   something else than most is the odd one out (asked again until all are at the operation).
// 3 The accusation goes to /comm/<id>/first_cause by compare-and-set: the first one stands, and
//   everybody takes what the key holds. The winner raises an alarm, so that ranks which wait
//   elsewhere fail at once.
// 4 What the supervisor has told (ReportPeerDead) is a better accusation than one's own evidence.
// 5 When the store does not answer within kVerdictWait, its host is the suspect if its own
//   connection is gone too or if all that was seen is silence; else one's own evidence stands.
//
// Threads: every member may be called from any thread, except where said.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"
#include "comm/verdict.h"
#include "control/key_value.h"
#include "control/messages.h"
#include "perdure/clock.h"
#include "perdure/ids.h"

namespace perdure {

inline constexpr Duration kVerdictWait = std::chrono::seconds(1);
inline constexpr Duration kRollCallWait = std::chrono::milliseconds(800);
inline constexpr Duration kRollCallAgain = std::chrono::milliseconds(50);

// A communicator as the arbiter sees it. Called with the arbiter's lock held: must not block and
// not call back.
class ArbitratedChannel {
 public:
  virtual ~ArbitratedChannel() = default;
  // Unique in the generation and the same on all ranks.
  virtual const std::string& id() const = 0;
  virtual const std::string& name() const = 0;  // for people
  // This rank of the job is in it.
  virtual bool Has(Rank rank) const = 0;
  virtual Standing standing() const = 0;
  virtual CommProgress progress() const = 0;
  // It has failed, and this is why.
  virtual void OnVerdict(const Verdict& verdict) = 0;
  // A peer is dead: stop what is running and ask for the verdict.
  virtual void OnPeerDead() = 0;
};

class FailureArbiter {
 public:
  struct Options {
    Rank rank;
    Rank store_host{0};  // the rank that the control store lives in
  };

  // `store` belongs to the arbiter alone, which closes it in the end.
  FailureArbiter(Options options, std::unique_ptr<KeyValue> store);
  ~FailureArbiter();
  FailureArbiter(const FailureArbiter&) = delete;
  FailureArbiter& operator=(const FailureArbiter&) = delete;

  // From the supervisor: this rank's process is gone. What is pending in communicators that it is
  // in fails at once.
  void ReportPeerDead(Rank rank, const std::string& reason);

  // The channel is called until Leave returns.
  void Join(ArbitratedChannel& channel);
  void Leave(ArbitratedChannel& channel);

  // Of every channel that has joined, for heartbeats.
  std::vector<CommProgress> Progress();

  struct Evidence {
    std::vector<Rank> members;     // of the communicator; this rank is among them
    Verdict own;                   // what this rank would say by itself
    bool deadline = false;         // all that was seen is silence
    bool mismatch = false;         // somebody called something else: the minority is at fault, of
                                   // two that send and receive both
    bool all_joined = false;       // with `deadline`: every rank was known to have joined
    int waits_for = -1;            // in a send or recv: its peer
    bool store_host_lost = false;  // the connection to the store's host is gone as well
  };

  // The verdict on a communicator: settles it for all ranks if nobody has before. Takes at most
  // kRollCallWait + kVerdictWait and a little; usually one round trip to the store. Lane threads
  // only.
  Verdict Judge(const std::string& id, const Evidence& evidence);

  // Why this communicator can no longer be built or go on: what the supervisor told, else the first
  // cause that the store holds.
  std::optional<Verdict> KnownCause(const std::string& id, const std::vector<Rank>& members,
                                    Deadline deadline);

 private:
  void Watch();
  void OnAlarm(const std::string& text);
  // Puts the alarm where every watcher will find it.
  Status Raise(const std::string& text, Deadline deadline);
  // Where every other rank says it is; nothing for one that does not answer. An error: the store
  // does not answer.
  Result<std::map<int, std::optional<Standing>>> CallRoll(const std::string& id,
                                                          const std::vector<Rank>& members,
                                                          Deadline deadline);
  // This rank's answer to a roll call.
  Standing StandingIn(const std::string& id);
  // Where this rank stands in all other communicators, by id.
  std::map<std::string, Standing> StandingsBeside(const std::string& id);
  Verdict StoreIsSilent(const Evidence& evidence) const;
  // Makes it this process's verdict on the communicator, unless there is one; returns the standing
  // one.
  Verdict Settle(const std::string& id, const Verdict& verdict);
  std::optional<Verdict> Settled(const std::string& id);
  // Waits kRollCallAgain; false when that is past the deadline.
  bool PauseBefore(Deadline deadline);
  // The supervisor's word on one of the members, in the place of `own`, when there is one.
  std::optional<Verdict> FromSupervisor(const Verdict& own, const std::vector<Rank>& members);
  const CommFailure::Suspect* ToldDead(const std::vector<Rank>& members) const
      PERDURE_REQUIRES(mutex_);

  const Options options_;
  const std::unique_ptr<KeyValue> store_;

  Mutex mutex_;
  CondVar changed_;
  bool closing_ PERDURE_GUARDED_BY(mutex_) = false;
  std::vector<CommFailure::Suspect> told_dead_ PERDURE_GUARDED_BY(mutex_);
  std::map<std::string, ArbitratedChannel*> channels_ PERDURE_GUARDED_BY(mutex_);
  std::map<std::string, Verdict> settled_ PERDURE_GUARDED_BY(mutex_);
  std::int64_t next_alarm_ PERDURE_GUARDED_BY(mutex_) = 1;
  std::int64_t roll_calls_ PERDURE_GUARDED_BY(mutex_) = 0;

  Thread watcher_;  // last: it uses the members above
};

}  // namespace perdure
