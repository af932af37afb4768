#include "comm/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

namespace perdure {
namespace {

using nlohmann::json;
using Class = CommFailure::Class;

constexpr std::array<Class, 7> kClasses = {
    Class::kPeerDead,       Class::kNotJoined, Class::kTimeout,   Class::kMismatch,
    Class::kOrderInversion, Class::kAborted,   Class::kLocalError};

Status Unreadable(const std::string& what, const std::string& text) {
  return Status(Code::kInternal,
                fmt::format("unreadable {} in the control store: '{}'", what, text.substr(0, 200)));
}

}  // namespace

std::string Encode(const Verdict& verdict) {
  json suspects = json::array();
  for (const CommFailure::Suspect& suspect : verdict.suspects) {
    suspects.push_back({{"rank", suspect.rank.value()}, {"evidence", suspect.evidence}});
  }
  // Evidence may hold bytes of a peer: replaced, not thrown.
  return json{{"class", std::string(NameOf(verdict.failure_class))},
              {"suspects", suspects},
              {"by_rank", verdict.by_rank},
              {"sequence", verdict.sequence},
              {"operation", verdict.operation}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<Verdict> DecodeVerdict(const std::string& text) {
  try {
    const json value = json::parse(text);
    Verdict verdict;
    const auto name = value.at("class").get<std::string>();
    bool known = false;
    for (const Class candidate : kClasses) {
      if (NameOf(candidate) != name) continue;
      verdict.failure_class = candidate;
      known = true;
    }
    if (!known) return Unreadable("verdict", text);
    for (const json& suspect : value.at("suspects")) {
      verdict.suspects.push_back({Rank(suspect.at("rank").get<std::int64_t>()),
                                  suspect.at("evidence").get<std::string>()});
    }
    verdict.by_rank = value.at("by_rank").get<int>();
    verdict.sequence = value.at("sequence").get<std::uint64_t>();
    verdict.operation = value.at("operation").get<std::string>();
    return verdict;
  } catch (const json::exception&) {
    return Unreadable("verdict", text);
  }
}

std::string Sentence(const Verdict& verdict) {
  std::string text;
  for (const CommFailure::Suspect& suspect : verdict.suspects) {
    if (!text.empty()) text += "; ";
    switch (verdict.failure_class) {
      case Class::kPeerDead:
        text += fmt::format("rank {} is dead: {}", suspect.rank.value(), suspect.evidence);
        break;
      case Class::kNotJoined:
        text += fmt::format("waiting for rank {}: {}", suspect.rank.value(), suspect.evidence);
        break;
      default:
        text += fmt::format("rank {}: {}", suspect.rank.value(), suspect.evidence);
    }
  }
  if (!text.empty()) return text;
  return verdict.failure_class == Class::kTimeout
             ? "all ranks have joined and answer, but the bytes did not arrive in time"
             : std::string(NameOf(verdict.failure_class));
}

std::string Encode(const Standing& standing) {
  json value{{"present", standing.present}, {"submitted", standing.submitted},
             {"started", standing.started}, {"completed", standing.completed},
             {"call", standing.call},       {"waits_for", standing.waits_for}};
  if (const std::optional<Elsewhere>& busy = standing.elsewhere) {
    value["elsewhere"] = {{"id", busy->id},
                          {"name", busy->name},
                          {"sequence", busy->sequence},
                          {"call", busy->call},
                          {"waits_for", busy->waits_for}};
  }
  return value.dump();
}

Result<Standing> DecodeStanding(const std::string& text) {
  try {
    const json value = json::parse(text);
    Standing standing{
        value.at("present").get<bool>(),          value.at("submitted").get<std::uint64_t>(),
        value.at("started").get<std::uint64_t>(), value.at("completed").get<std::uint64_t>(),
        value.at("call").get<std::string>(),      value.at("waits_for").get<int>()};
    if (const auto found = value.find("elsewhere"); found != value.end()) {
      standing.elsewhere =
          Elsewhere{found->at("id").get<std::string>(), found->at("name").get<std::string>(),
                    found->at("sequence").get<std::uint64_t>(),
                    found->at("call").get<std::string>(), found->at("waits_for").get<int>()};
    }
    return standing;
  } catch (const json::exception&) {
    return Unreadable("answer to a roll call", text);
  }
}

bool AllAt(const Roll& roll, std::uint64_t sequence) {
  return std::all_of(roll.begin(), roll.end(), [&](const auto& entry) {
    return !entry.second.has_value() || entry.second->started >= sequence;
  });
}

namespace {

// Why this rank is waited for in a collective; nothing when it is in it.
std::optional<std::string> WhyBehind(const Standing& standing, std::uint64_t sequence) {
  if (!standing.present) return "it has left or not yet entered this communicator";
  if (standing.submitted < sequence) {
    return fmt::format("it has not called operation {} (its last is {})", sequence,
                       standing.submitted);
  }
  if (standing.started >= sequence) return std::nullopt;
  if (standing.elsewhere.has_value()) {
    return fmt::format("it has called operation {}, but is still in {} of communicator {}",
                       sequence, standing.elsewhere->call, standing.elsewhere->name);
  }
  return fmt::format("it is still at operation {}, before {}", standing.started, sequence);
}

// What this peer is busy with elsewhere waits, in turn, for this rank.
bool WaitsForUs(const Standing& peer, std::uint64_t sequence, int self,
                const std::map<std::string, Standing>& others) {
  if (!peer.elsewhere.has_value() || peer.submitted < sequence || peer.started >= sequence) {
    return false;
  }
  if (peer.elsewhere->waits_for >= 0) return peer.elsewhere->waits_for == self;
  const auto here = others.find(peer.elsewhere->id);
  return here != others.end() && here->second.started < peer.elsewhere->sequence;
}

// The suspects when some of them wait for this rank in another communicator; none otherwise.
std::map<int, std::string> AcrossCommunicators(const Verdict& own, const Roll& roll,
                                               const std::map<std::string, Standing>& others) {
  std::map<int, std::string> suspects;
  for (const auto& [peer, standing] : roll) {
    if (!standing.has_value() || !WaitsForUs(*standing, own.sequence, own.by_rank, others))
      continue;
    const Elsewhere& busy = *standing->elsewhere;
    suspects[peer] = fmt::format("it is in {} (operation {} of communicator {}) before this one",
                                 busy.call, busy.sequence, busy.name);
    suspects[own.by_rank] =
        fmt::format("it is in {} (operation {}) before that", own.operation, own.sequence);
  }
  return suspects;
}
// Who waits for whom in a send or recv, from `first` on: up to the first that waits for nobody or
// did not answer, or the members of the circle that it ends in.
struct Chain {
  std::vector<int> ranks;
  bool circle = false;
};

Chain FollowWaits(int self, int first, const Roll& roll) {
  std::vector<int> path = {self};
  for (int at = first;;) {
    const auto before = std::find(path.begin(), path.end(), at);
    if (before != path.end()) return {{before, path.end()}, true};
    path.push_back(at);
    const auto found = roll.find(at);
    if (found == roll.end() || !found->second.has_value() || found->second->waits_for < 0) {
      return {{path.begin() + 1, path.end()}, false};
    }
    at = found->second->waits_for;
  }
}

constexpr std::string_view kNoAnswer =
    "its process is connected but does not answer (stopped or cut off)";

bool Answered(int rank, const Roll& roll) {
  const auto found = roll.find(rank);
  return found == roll.end() || found->second.has_value();
}

std::vector<CommFailure::Suspect> InOrder(const std::map<int, std::string>& suspects) {
  std::vector<CommFailure::Suspect> list;
  for (const auto& [rank, why] : suspects) list.push_back({Rank(rank), why});
  return list;
}

}  // namespace

Verdict WhoIsMissing(const Verdict& own, bool all_joined, int waits_for, const Roll& roll,
                     const std::map<std::string, Standing>& others) {
  Verdict verdict = own;
  verdict.failure_class = all_joined ? Class::kTimeout : Class::kNotJoined;
  verdict.suspects.clear();
  // Who is waited for, and why.
  std::map<int, std::string> silent;
  std::map<int, std::string> behind;
  std::map<int, std::string> elsewhere;  // late because somebody else is
  if (waits_for >= 0) {
    behind[waits_for] = all_joined ? "its bytes do not arrive"
                                   : "it has not come to the other half of " + own.operation;
  } else {
    for (const auto& [peer, standing] : roll) {
      if (!standing.has_value()) {
        silent[peer] = kNoAnswer;
      } else if (auto why = WhyBehind(*standing, own.sequence)) {
        (standing->elsewhere.has_value() ? elsewhere : behind)[peer] = *std::move(why);
      }
    }
  }
  if (behind.empty()) behind.swap(elsewhere);
  // The silent first: a rank that is merely late may be late because of them.
  if (!silent.empty()) {
    verdict.suspects = InOrder(silent);
    return verdict;
  }
  std::map<int, std::string> suspects = AcrossCommunicators(own, roll, others);
  if (!suspects.empty()) {
    verdict.failure_class = Class::kOrderInversion;
    verdict.suspects = InOrder(suspects);
    return verdict;
  }
  for (const auto& [peer, why] : behind) {
    const Chain chain = FollowWaits(own.by_rank, peer, roll);
    if (chain.circle) {
      verdict.failure_class = Class::kOrderInversion;
      suspects.clear();
      for (const int rank : chain.ranks) {
        suspects[rank] =
            "it waits in " + (rank == own.by_rank ? own.operation : roll.at(rank)->call);
      }
      break;
    }
    const int last = chain.ranks.back();
    if (!Answered(last, roll)) {
      suspects[last] = kNoAnswer;
    } else if (last == peer) {
      suspects[last] = why;
    } else {
      const int waiter = chain.ranks[chain.ranks.size() - 2];
      suspects[last] = fmt::format("rank {} waits for it in {}", waiter, roll.at(waiter)->call);
    }
  }
  verdict.suspects = InOrder(suspects);
  if (suspects.empty()) verdict.failure_class = Class::kTimeout;
  return verdict;
}

Verdict WhoIsOdd(const Verdict& own, const Roll& roll) {
  // Only answers about the same operation are comparable.
  std::map<std::string, std::vector<int>> callers;
  callers[own.operation].push_back(own.by_rank);
  for (const auto& [peer, standing] : roll) {
    if (standing.has_value() && standing->present && standing->started == own.sequence) {
      callers[standing->call].push_back(peer);
    }
  }
  std::size_t total = 0;
  const auto* usual = &*callers.begin();
  for (const auto& group : callers) {
    total += group.second.size();
    if (group.second.size() > usual->second.size()) usual = &group;
  }
  Verdict verdict = own;
  if (callers.size() < 2) return verdict;
  verdict.suspects.clear();
  const bool majority = 2 * usual->second.size() > total;
  for (const auto& [call, ranks] : callers) {
    if (majority && call == usual->first) continue;
    for (const int rank : ranks) {
      verdict.suspects.push_back(
          {Rank(rank), majority ? fmt::format("it called {}, the others {}", call, usual->first)
                                : fmt::format("it called {}", call)});
    }
  }
  std::sort(verdict.suspects.begin(), verdict.suspects.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return verdict;
}

}  // namespace perdure
