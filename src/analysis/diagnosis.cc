#include "analysis/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace perdure {
namespace {

constexpr std::size_t kNamedMost = 8;

std::string Where(const RankFacts& facts) {
  return fmt::format("rank {} on {}", facts.rank.value(), facts.node);
}

std::string Doing(const RankFacts& facts) {
  if (!facts.reported) return "before its first report";
  const std::string phase =
      facts.phase_name.empty() ? std::string(NameOf(facts.phase)) : facts.phase_name;
  if (facts.step.value() < 0) return fmt::format("in phase {}", phase);
  return fmt::format("at step {} in phase {}", facts.step.value(), phase);
}

std::string Waiting(const std::vector<RankFacts>& ranks, Rank culprit) {
  std::vector<Rank> others;
  for (const RankFacts& facts : ranks) {
    if (facts.rank != culprit && facts.reported && facts.phase == Phase::kComm) {
      others.push_back(facts.rank);
    }
  }
  if (others.empty()) return "";
  return fmt::format("; {} {} for it", RankList(others), others.size() == 1 ? "waits" : "wait");
}

Diagnosis Blame(const std::vector<RankFacts>& ranks, const RankFacts& culprit,
                const std::string& what) {
  return {culprit.rank, culprit.node,
          fmt::format("{} {}{}", Where(culprit), what, Waiting(ranks, culprit.rank))};
}

bool Waits(const RankFacts& facts) {
  return facts.reported && facts.phase == Phase::kComm;
}

// The rank that is furthest behind in steps, when some are and some are not. Of several, one that
// does not itself wait, and has stood still for longest.
const RankFacts* LowestStep(const std::vector<RankFacts>& ranks) {
  const RankFacts* lowest = nullptr;
  std::int64_t highest = -1;
  for (const RankFacts& facts : ranks) {
    if (!facts.reported) continue;
    highest = std::max(highest, facts.step.value());
    if (lowest == nullptr || facts.step < lowest->step) {
      lowest = &facts;
    } else if (facts.step == lowest->step &&
               (Waits(*lowest) > Waits(facts) ||
                (Waits(*lowest) == Waits(facts) &&
                 facts.standing_seconds > lowest->standing_seconds))) {
      lowest = &facts;
    }
  }
  return lowest != nullptr && lowest->step.value() < highest ? lowest : nullptr;
}

struct NotJoined {
  const RankFacts* rank = nullptr;
  std::string communicator;
  std::uint64_t operation = 0;  // that others have submitted
};

// In each communicator, who has submitted fewer operations than the others? A rank that waits in
// another communicator is behind only because of somebody else, so it is named last.
NotJoined FindNotJoined(const std::vector<RankFacts>& ranks) {
  std::map<std::string, std::uint64_t> most;
  for (const RankFacts& facts : ranks) {
    for (const CommProgress& progress : facts.communicators) {
      std::uint64_t& submitted = most[progress.communicator];
      submitted = std::max(submitted, progress.submitted);
    }
  }
  NotJoined found;
  std::uint64_t widest = 0;
  for (const bool waiting : {false, true}) {
    for (const RankFacts& facts : ranks) {
      if (Waits(facts) != waiting) continue;
      for (const CommProgress& progress : facts.communicators) {
        const std::uint64_t gap = most[progress.communicator] - progress.submitted;
        if (gap <= widest) continue;
        widest = gap;
        found = {&facts, progress.communicator, most[progress.communicator]};
      }
    }
    if (found.rank != nullptr) break;
  }
  return found;
}

const RankFacts* Accused(const std::vector<RankFacts>& ranks,
                         const std::vector<Suspicion>& suspicions, std::size_t* votes) {
  std::map<Rank, std::size_t> counts;
  for (const Suspicion& suspicion : suspicions) {
    for (const Rank suspect : suspicion.suspects) {
      if (suspect != suspicion.by) ++counts[suspect];
    }
  }
  const RankFacts* accused = nullptr;
  *votes = 0;
  for (const RankFacts& facts : ranks) {
    const auto found = counts.find(facts.rank);
    if (found != counts.end() && found->second > *votes) {
      *votes = found->second;
      accused = &facts;
    }
  }
  return accused;
}

}  // namespace

std::string RankList(const std::vector<Rank>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0].value());
  std::string text = "ranks ";
  const std::size_t named = std::min(ranks.size(), kNamedMost);
  for (std::size_t i = 0; i < named; ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i].value());
  }
  if (named < ranks.size()) text += fmt::format(" and {} more", ranks.size() - named);
  return text;
}

Diagnosis Diagnose(const std::vector<RankFacts>& ranks, const std::vector<Suspicion>& suspicions) {
  for (const RankFacts& facts : ranks) {
    if (facts.process == ProcessState::kGone || facts.process == ProcessState::kZombie) {
      return Blame(ranks, facts, fmt::format("is gone ({})", Doing(facts)));
    }
  }
  for (const RankFacts& facts : ranks) {
    if (facts.process == ProcessState::kStopped) {
      return Blame(ranks, facts, fmt::format("is stopped {}", Doing(facts)));
    }
  }
  for (const RankFacts& facts : ranks) {
    if (!facts.reported && facts.overdue()) {
      return Blame(ranks, facts,
                   fmt::format("has reported nothing for {:.0f} s", facts.standing_seconds));
    }
  }
  const auto stuck = [](const RankFacts& facts) {
    return facts.process == ProcessState::kUninterruptible
               ? std::string(" (its process is in uninterruptible sleep)")
           : facts.silent_seconds > facts.deadline_seconds
               ? fmt::format(" (silent for {:.0f} s)", facts.silent_seconds)
               : std::string();
  };
  if (const RankFacts* behind = LowestStep(ranks)) {
    return Blame(ranks, *behind,
                 fmt::format("is behind, {} for {:.0f} s{}", Doing(*behind),
                             behind->standing_seconds, stuck(*behind)));
  }
  if (const NotJoined missing = FindNotJoined(ranks); missing.rank != nullptr) {
    return Blame(ranks, *missing.rank,
                 fmt::format("has not joined operation {} of {}: it is {} for {:.0f} s{}",
                             missing.operation, missing.communicator, Doing(*missing.rank),
                             missing.rank->standing_seconds, stuck(*missing.rank)));
  }
  const bool some_wait = std::any_of(ranks.begin(), ranks.end(), [](const RankFacts& facts) {
    return facts.reported && facts.phase == Phase::kComm;
  });
  if (some_wait) {
    const RankFacts* busy = nullptr;
    for (const RankFacts& facts : ranks) {
      if (facts.phase == Phase::kComm) continue;
      if (busy == nullptr || facts.standing_seconds > busy->standing_seconds) busy = &facts;
    }
    if (busy != nullptr) {
      return Blame(ranks, *busy,
                   fmt::format("stands still {} for {:.0f} s{}", Doing(*busy),
                               busy->standing_seconds, stuck(*busy)));
    }
  }
  std::size_t votes = 0;
  if (const RankFacts* accused = Accused(ranks, suspicions, &votes)) {
    return Blame(ranks, *accused,
                 fmt::format("is named by {} of {} ranks that failed (\"{}\")", votes,
                             suspicions.size(), suspicions.front().message));
  }
  std::vector<const RankFacts*> overdue;
  for (const RankFacts& facts : ranks) {
    if (facts.overdue()) overdue.push_back(&facts);
  }
  if (!overdue.empty() && (overdue.size() < ranks.size() || ranks.size() == 1)) {
    const RankFacts* longest = *std::max_element(overdue.begin(), overdue.end(),
                                                 [](const RankFacts* a, const RankFacts* b) {
                                                   return a->standing_seconds < b->standing_seconds;
                                                 });
    return Blame(
        ranks, *longest,
        fmt::format("stands still {} for {:.0f} s > {:.0f} s{}", Doing(*longest),
                    longest->standing_seconds, longest->deadline_seconds, stuck(*longest)));
  }
  if (ranks.empty()) return {std::nullopt, "", "no rank can be seen"};
  return {std::nullopt, "",
          fmt::format("all {} ranks stand still {} and none stands out", ranks.size(),
                      Doing(ranks.front()))};
}

}  // namespace perdure
