// The flight recorder, the lane, and verdicts as values.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/thread.h"
#include "comm/flight_recorder.h"
#include "comm/lane.h"
#include "comm/verdict.h"

namespace perdure {
namespace {

using Class = CommFailure::Class;

MonotonicTime At(int nanoseconds) {
  return MonotonicTime(Duration(nanoseconds));
}

Operation Some(std::uint64_t sequence) {
  Operation operation;
  operation.call = {.verb = Verb::kAllReduce, .dtype = DType::kBF16, .count = sequence * 2};
  operation.sequence = sequence;
  operation.bytes = sequence * 4;
  return operation;
}

TEST(FlightRecorderTest, KeepsWhatWasToldOfAnOperation) {
  FlightRecorder recorder;
  const std::uint64_t done = recorder.Submitted(3, Some(1), At(10));
  const std::uint64_t running = recorder.Submitted(3, Some(2), At(11));
  recorder.Started(done, At(20));
  recorder.Completed(done, At(30), true);
  recorder.Started(running, At(31));
  const std::vector<FlightRecord> records = recorder.Snapshot();
  ASSERT_EQ(records.size(), 2u);
  const FlightRecord expected{.ticket = done,
                              .communicator = 3,
                              .sequence = 1,
                              .verb = Verb::kAllReduce,
                              .dtype = DType::kBF16,
                              .count = 2,
                              .bytes = 4,
                              .submitted = 10,
                              .started = 20,
                              .completed = 30,
                              .failed = true};
  EXPECT_EQ(records[0], expected);
  EXPECT_EQ(records[1].started, 31);
  EXPECT_EQ(records[1].completed, 0);
}

TEST(FlightRecorderTest, KeepsTheLastOnesInOrder) {
  FlightRecorder recorder;
  for (std::uint64_t i = 1; i <= kFlightRecordsMax + 100; ++i) {
    recorder.Submitted(1, Some(i), At(1));
  }
  const std::vector<FlightRecord> records = recorder.Snapshot();
  ASSERT_EQ(records.size(), kFlightRecordsMax);
  EXPECT_EQ(records.front().sequence, 101u);
  EXPECT_EQ(records.back().sequence, kFlightRecordsMax + 100);
}

TEST(FlightRecorderTest, AReaderNeverSeesHalfARecord) {
  FlightRecorder recorder;
  std::atomic<bool> stop{false};
  Thread writer("writer", [&] {
    for (std::uint64_t i = 1; i < 20000; ++i) recorder.Submitted(1, Some(i), At(1));
    stop = true;
  });
  while (!stop) {
    for (const FlightRecord& record : recorder.Snapshot()) {
      ASSERT_EQ(record.count, record.sequence * 2);
      ASSERT_EQ(record.bytes, record.sequence * 4);
    }
  }
}

class CountingTask final : public LaneTask {
 public:
  CountingTask(const void* owner, std::vector<int>& ran, int number)
      : owner_(owner), ran_(ran), number_(number) {}
  void Run() override { ran_.push_back(number_); }
  const void* owner() const override { return owner_; }

 private:
  const void* owner_;
  std::vector<int>& ran_;
  int number_;
};

class BlockingTask final : public LaneTask {
 public:
  BlockingTask(std::atomic<bool>& running, std::atomic<bool>& go) : running_(running), go_(go) {}
  void Run() override {
    running_ = true;
    while (!go_) std::this_thread::yield();
  }
  const void* owner() const override { return nullptr; }

 private:
  std::atomic<bool>& running_;
  std::atomic<bool>& go_;
};

TEST(LaneTest, RunsInOrderAndIsBounded) {
  std::vector<int> ran;  // by the lane alone, until it is joined
  std::atomic<bool> running{false};
  std::atomic<bool> go{false};
  {
    Lane lane;
    EXPECT_TRUE(lane.Submit(std::make_shared<BlockingTask>(running, go)));
    while (!running) std::this_thread::yield();
    for (std::size_t i = 0; i < kLaneDepthMax; ++i) {
      EXPECT_TRUE(lane.Submit(std::make_shared<CountingTask>(&ran, ran, static_cast<int>(i))));
    }
    EXPECT_FALSE(lane.Submit(std::make_shared<CountingTask>(&ran, ran, -1)));
    go = true;
  }
  ASSERT_EQ(ran.size(), kLaneDepthMax);
  for (std::size_t i = 0; i < kLaneDepthMax; ++i) EXPECT_EQ(ran[i], static_cast<int>(i));
}

TEST(LaneTest, DropsOnlyTheOwnersTasks) {
  std::vector<int> ran;
  std::atomic<bool> running{false};
  std::atomic<bool> go{false};
  int owner = 0;
  {
    Lane lane;
    EXPECT_TRUE(lane.Submit(std::make_shared<BlockingTask>(running, go)));
    while (!running) std::this_thread::yield();
    EXPECT_TRUE(lane.Submit(std::make_shared<CountingTask>(&owner, ran, 1)));
    EXPECT_TRUE(lane.Submit(std::make_shared<CountingTask>(&ran, ran, 2)));
    EXPECT_TRUE(lane.Submit(std::make_shared<CountingTask>(&owner, ran, 3)));
    EXPECT_EQ(lane.Drop(&owner).size(), 2u);
    go = true;
  }
  EXPECT_EQ(ran, std::vector<int>{2});
}

Verdict Own(std::uint64_t sequence, const std::string& operation) {
  Verdict verdict;
  verdict.by_rank = 0;
  verdict.sequence = sequence;
  verdict.operation = operation;
  return verdict;
}

std::vector<std::int64_t> Ranks(const Verdict& verdict) {
  std::vector<std::int64_t> ranks;
  for (const auto& suspect : verdict.suspects) ranks.push_back(suspect.rank.value());
  return ranks;
}

Standing At(std::uint64_t submitted, std::uint64_t started, const std::string& call) {
  return {true, submitted, started, started - 1, call};
}

// In a send or recv with `peer`.
Standing With(int peer, const std::string& call) {
  return {true, 4, 4, 4, call, peer};
}

// In a job with one communicator.
Verdict WhoIsMissingHere(const Verdict& own, bool all_joined, int waits_for, const Roll& roll) {
  return WhoIsMissing(own, all_joined, waits_for, roll, {});
}

TEST(VerdictTest, SurvivesTheStore) {
  Verdict verdict = Own(57, "all_reduce f32 x 8 (sum)");
  verdict.failure_class = Class::kNotJoined;
  verdict.suspects = {{Rank(2), "it \"sleeps\""}, {Rank(3), "bytes \xff\xfe"}};
  const Result<Verdict> decoded = DecodeVerdict(Encode(verdict));
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(Ranks(*decoded), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(decoded->failure_class, Class::kNotJoined);
  EXPECT_EQ(decoded->suspects[0].evidence, "it \"sleeps\"");
  EXPECT_EQ(decoded->sequence, 57u);
  EXPECT_FALSE(DecodeVerdict("").ok());
  EXPECT_FALSE(DecodeVerdict("{\"class\":\"peer_dead\"}").ok());
  EXPECT_FALSE(DecodeVerdict("[1,2]").ok());
  EXPECT_FALSE(DecodeStanding("{}").ok());
}

TEST(VerdictTest, TheSilentRankIsMissingBeforeTheLateOne) {
  const Verdict verdict =
      WhoIsMissingHere(Own(5, "barrier"), false, -1,
                       {{1, At(4, 4, "barrier")}, {2, std::nullopt}, {3, At(5, 5, "barrier")}});
  EXPECT_EQ(verdict.failure_class, Class::kNotJoined);
  EXPECT_EQ(Ranks(verdict), std::vector<std::int64_t>{2});
}

TEST(VerdictTest, TheLateRankIsSaidWithWhereItIs) {
  const Verdict verdict =
      WhoIsMissingHere(Own(5, "barrier"), false, -1, {{1, At(4, 4, "x")}, {2, At(6, 4, "x")}});
  EXPECT_EQ(Sentence(verdict),
            "waiting for rank 1: it has not called operation 5 (its last is 4); "
            "waiting for rank 2: it is still at operation 4, before 5");
}

TEST(VerdictTest, WhenAllAreInItItIsATimeout) {
  const Verdict verdict =
      WhoIsMissingHere(Own(5, "barrier"), false, -1, {{1, At(5, 5, "barrier")}});
  EXPECT_EQ(verdict.failure_class, Class::kTimeout);
  EXPECT_TRUE(verdict.suspects.empty());
}

TEST(VerdictTest, WhoWaitsInAReceivePassesTheBlameOn) {
  // 0 waits for 1 in a send, which waits for 2, which is elsewhere; 3 has nothing to do with it.
  const Verdict chain = WhoIsMissingHere(
      Own(1, "send f32 x 4 to rank 1"), false, 1,
      {{1, With(2, "recv f32 x 4 from rank 2")}, {2, At(4, 4, "barrier")}, {3, {}}});
  EXPECT_EQ(chain.failure_class, Class::kNotJoined);
  EXPECT_EQ(Sentence(chain), "waiting for rank 2: rank 1 waits for it in recv f32 x 4 from rank 2");

  const Verdict silent = WhoIsMissingHere(Own(1, "send f32 x 4 to rank 1"), false, 1,
                                          {{1, With(2, "recv f32 x 4 from rank 2")}, {2, {}}});
  EXPECT_EQ(Ranks(silent), std::vector<std::int64_t>{2});
  EXPECT_NE(silent.suspects[0].evidence.find("does not answer"), std::string::npos);

  const Verdict direct =
      WhoIsMissingHere(Own(1, "send f32 x 4 to rank 1"), false, 1, {{1, At(4, 4, "barrier")}});
  EXPECT_EQ(Sentence(direct),
            "waiting for rank 1: it has not come to the other half of send f32 x 4 to rank 1");

  // A collective that a rank is late for, because it still waits for another one.
  const Verdict late = WhoIsMissingHere(
      Own(5, "barrier"), false, -1, {{1, With(2, "recv u8 x 1 from rank 2")}, {2, At(5, 5, "x")}});
  EXPECT_EQ(Ranks(late), std::vector<std::int64_t>{2});
}

TEST(VerdictTest, RanksThatWaitInACircleAreSuspectsTogether) {
  const Verdict circle = WhoIsMissingHere(
      Own(1, "send f32 x 9 to rank 1"), false, 1,
      {{1, With(2, "send f32 x 9 to rank 2")}, {2, With(0, "send f32 x 9 to rank 0")}, {3, {}}});
  EXPECT_EQ(circle.failure_class, Class::kOrderInversion);
  EXPECT_EQ(Sentence(circle),
            "rank 0: it waits in send f32 x 9 to rank 1; rank 1: it waits in send f32 x 9 to rank "
            "2; rank 2: it waits in send f32 x 9 to rank 0");
  // Who waits for the circle is not part of it.
  const Verdict outside = WhoIsMissingHere(
      Own(1, "recv f32 x 9 from rank 1"), false, 1,
      {{1, With(2, "send f32 x 9 to rank 2")}, {2, With(1, "send f32 x 9 to rank 1")}});
  EXPECT_EQ(Ranks(outside), (std::vector<std::int64_t>{1, 2}));
}

// Submitted operation `sequence`, but is still in operation 7 of another communicator.
Standing Busy(std::uint64_t sequence, int waits_for = -1) {
  Standing standing = At(sequence, sequence - 1, "barrier");
  standing.completed = standing.started;
  standing.elsewhere = Elsewhere{"b.1", "b", 7, "all_gather u8 x 1", waits_for};
  return standing;
}

TEST(VerdictTest, TwoCommunicatorsInOppositeOrderAreAnInversion) {
  const Standing queued_here{.submitted = 7, .started = 6, .completed = 6};
  const Verdict verdict =
      WhoIsMissing(Own(5, "barrier"), false, -1, {{1, Busy(5)}, {2, At(5, 5, "barrier")}},
                   {{"b.1", queued_here}});
  EXPECT_EQ(verdict.failure_class, Class::kOrderInversion);
  EXPECT_EQ(
      Sentence(verdict),
      "rank 0: it is in barrier (operation 5) before that; rank 1: it is in all_gather u8 x 1 "
      "(operation 7 of communicator b) before this one");

  // A send that waits for this rank is one, too.
  const Verdict send = WhoIsMissing(Own(5, "barrier"), false, -1, {{1, Busy(5, 0)}}, {});
  EXPECT_EQ(send.failure_class, Class::kOrderInversion);

  // Not when this rank has done its part there.
  const Standing done_here{.submitted = 7, .started = 7, .completed = 7};
  const Verdict late =
      WhoIsMissing(Own(5, "barrier"), false, -1, {{1, Busy(5)}}, {{"b.1", done_here}});
  EXPECT_EQ(late.failure_class, Class::kNotJoined);
  EXPECT_EQ(Sentence(late),
            "waiting for rank 1: it has called operation 5, but is still in all_gather u8 x 1 of "
            "communicator b");
}

TEST(VerdictTest, WhoIsHeldUpElsewhereIsNotToBlameWhileAnotherIsMissing) {
  const Verdict verdict =
      WhoIsMissing(Own(5, "barrier"), false, -1, {{1, Busy(5)}, {2, At(4, 4, "barrier")}}, {});
  EXPECT_EQ(Ranks(verdict), std::vector<std::int64_t>{2});
}

TEST(VerdictTest, AStandingSurvivesTheStore) {
  for (const Standing& standing :
       {At(5, 5, "barrier"), With(2, "send u8 x 1 to rank 2"), Busy(3)}) {
    const Result<Standing> decoded = DecodeStanding(Encode(standing));
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_EQ(*decoded, standing);
  }
}

TEST(VerdictTest, TheMinorityIsOdd) {
  Verdict own = Own(5, "all_reduce f32 x 4 (sum)");
  own.failure_class = Class::kMismatch;
  // Even when the odd one is who judges.
  const Verdict verdict = WhoIsOdd(own, {{1, At(5, 5, "barrier")}, {2, At(5, 5, "barrier")}});
  EXPECT_EQ(Ranks(verdict), std::vector<std::int64_t>{0});
  EXPECT_EQ(verdict.suspects[0].evidence, "it called all_reduce f32 x 4 (sum), the others barrier");
}

}  // namespace
}  // namespace perdure
