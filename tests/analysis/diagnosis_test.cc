#include "analysis/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace perdure {
namespace {

using testing::HasSubstr;

// Four ranks on two nodes, all in step 10; the others wait in a collective for `missing`.
std::vector<RankFacts> WaitingFor(int missing) {
  std::vector<RankFacts> ranks;
  for (int i = 0; i < 4; ++i) {
    RankFacts facts;
    facts.rank = Rank(i);
    facts.node = std::string(1, i < 2 ? 'a' : 'b');
    facts.reported = true;
    facts.phase = i == missing ? Phase::kCompute : Phase::kComm;
    facts.step = Step(10);
    facts.completed = Step(9);
    facts.standing_seconds = 20;
    facts.deadline_seconds = 15;
    ranks.push_back(facts);
  }
  return ranks;
}

TEST(Diagnose, AStoppedProcess) {
  std::vector<RankFacts> ranks = WaitingFor(2);
  ranks[2].process = ProcessState::kStopped;
  const Diagnosis diagnosis = Diagnose(ranks, {});
  EXPECT_EQ(diagnosis.culprit, Rank(2));
  EXPECT_EQ(diagnosis.sentence,
            "rank 2 on b is stopped at step 10 in phase compute; ranks 0, 1 and 3 wait for it");
}

TEST(Diagnose, TheLowestStepNotTheOneThatWaitsThere) {
  std::vector<RankFacts> ranks = WaitingFor(1);
  ranks[1].step = ranks[0].step = Step(9);
  EXPECT_EQ(Diagnose(ranks, {}).culprit, Rank(1));
  EXPECT_THAT(Diagnose(ranks, {}).sentence, HasSubstr("rank 1 on a is behind, at step 9"));
}

TEST(Diagnose, NotJoinedInACommunicator) {
  std::vector<RankFacts> ranks = WaitingFor(3);
  for (int i = 0; i < 4; ++i) {
    ranks[static_cast<std::size_t>(i)].communicators = {{"world", i == 3 ? 6u : 7u, 6, 6, 0}};
  }
  EXPECT_EQ(Diagnose(ranks, {}).culprit, Rank(3));
  EXPECT_THAT(Diagnose(ranks, {}).sentence, HasSubstr("has not joined operation 7 of world"));
}

TEST(Diagnose, WhoIsBehindBecauseItWaitsElsewhereIsNotBlamed) {
  std::vector<RankFacts> ranks = WaitingFor(3);
  // Rank 0 waits for rank 3 in "tp" and is therefore late in "dp" as well.
  ranks[0].communicators = {{"dp", 4, 4, 4, 0}, {"tp", 9, 8, 8, 0}};
  ranks[1].communicators = {{"dp", 7, 6, 6, 0}};
  ranks[3].communicators = {{"tp", 8, 8, 8, 0}};
  EXPECT_EQ(Diagnose(ranks, {}).culprit, Rank(3));
}

TEST(Diagnose, BusyElsewhereWithThePhaseItIsIn) {
  std::vector<RankFacts> ranks = WaitingFor(0);
  ranks[0].phase = Phase::kCheckpoint;
  EXPECT_EQ(Diagnose(ranks, {}).sentence,
            "rank 0 on a stands still at step 10 in phase checkpoint for 20 s; ranks 1, 2 and 3 "
            "wait for it");
}

TEST(Diagnose, TheSuspectOfThoseThatFailed) {
  std::vector<RankFacts> ranks = WaitingFor(-1);
  const Diagnosis diagnosis =
      Diagnose(ranks, {{Rank(0), {Rank(2)}, "no answer"}, {Rank(1), {Rank(2)}, "no answer"}});
  EXPECT_EQ(diagnosis.culprit, Rank(2));
}

TEST(Diagnose, NobodyStandsOut) {
  const Diagnosis diagnosis = Diagnose(WaitingFor(-1), {});
  EXPECT_FALSE(diagnosis.culprit.has_value());
  EXPECT_THAT(diagnosis.sentence, HasSubstr("none stands out"));
  EXPECT_FALSE(Diagnose({}, {}).culprit.has_value());
}

TEST(Diagnose, ARankThatNeverSpoke) {
  std::vector<RankFacts> ranks = WaitingFor(-1);
  for (RankFacts& facts : ranks) facts.phase = Phase::kInit;
  ranks[1].reported = false;
  EXPECT_EQ(Diagnose(ranks, {}).culprit, Rank(1));
}

TEST(RankList, NamesTheFirstAndCountsTheRest) {
  std::vector<Rank> ranks;
  for (int i = 0; i < 100; ++i) ranks.push_back(Rank(i));
  EXPECT_EQ(RankList(ranks), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more");
  EXPECT_EQ(RankList({Rank(5)}), "rank 5");
  EXPECT_EQ(RankList({Rank(5), Rank(7)}), "ranks 5 and 7");
}

}  // namespace
}  // namespace perdure
