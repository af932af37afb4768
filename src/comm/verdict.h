// The one answer to "who is at fault" that all survivors give (COMM-2), and its form in the control
// store. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "perdure/status.h"

namespace perdure {

struct Verdict {
  CommFailure::Class failure_class = CommFailure::Class::kLocalError;
  std::vector<CommFailure::Suspect> suspects;
  // Where the rank that gave it stood, for the others' messages.
  int by_rank = -1;
  std::uint64_t sequence = 0;
  std::string operation;
};

// JSON. Decode refuses what Encode does not write.
std::string Encode(const Verdict& verdict);
Result<Verdict> DecodeVerdict(const std::string& text);

// "rank 2 is dead: its connection closed without a word", "waiting for rank 1: …".
std::string Sentence(const Verdict& verdict);

// What keeps a rank's lane busy while an operation of another communicator waits behind it.
struct Elsewhere {
  std::string id;    // of that communicator
  std::string name;  // for people
  std::uint64_t sequence = 0;
  std::string call;
  int waits_for = -1;  // its peer, if it is a send or recv
  friend bool operator==(const Elsewhere&, const Elsewhere&) = default;
};

// Where a rank stands in a communicator; its answer to a roll call.
struct Standing {
  bool present = true;  // it has this communicator
  std::uint64_t submitted = 0;
  std::uint64_t started = 0;
  std::uint64_t completed = 0;
  std::string call = {};  // what runs, or ran last: operation number `started`, a send or a recv
  int waits_for = -1;     // while a send or recv runs: its peer
  std::optional<Elsewhere> elsewhere = {};

  bool running() const { return started > completed || waits_for >= 0; }
  friend bool operator==(const Standing&, const Standing&) = default;
};
std::string Encode(const Standing& standing);
Result<Standing> DecodeStanding(const std::string& text);

// The answers of the other ranks to a roll call; none from a rank that was silent.
using Roll = std::map<int, std::optional<Standing>>;

// Everybody who answered has started this operation.
bool AllAt(const Roll& roll, std::uint64_t sequence);

// After a deadline: `own` with the silent ranks as suspects, else those that have not started the
// operation; nobody when all are in it. Of a send or recv, `waits_for` is the peer. A rank that is
// itself waiting in a send or recv passes the blame on to its peer; ranks that wait for one another
// in a circle are the suspects together, also when the circle goes over two communicators: `others`
// is where this rank stands in its other ones, by id.
Verdict WhoIsMissing(const Verdict& own, bool all_joined, int waits_for, const Roll& roll,
                     const std::map<std::string, Standing>& others);

// After a mismatch: `own` with those as suspects whose call differs from that of most ranks; every
// rank with its call when there is no majority.
Verdict WhoIsOdd(const Verdict& own, const Roll& roll);

}  // namespace perdure
