#include "analysis/accounting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

namespace perdure {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;

std::int64_t Sum(const Accounting& accounting) {
  return std::accumulate(accounting.ms.begin(), accounting.ms.end(), std::int64_t{0});
}

// 0 s asked for nodes, 2 s launched, 3 s opened, 23 s at step 19; killed at 24 s, judged at 24.5 s,
// gone at 25 s, relaunched at once from step 9, opened at 26 s, first step at 28 s, now 40 s.
JobFacts Interrupted() {
  JobFacts facts;
  facts.until_ms = 40'000;
  GenerationFacts first;
  first.number = 1;
  first.decided_ms = 2'000;
  first.opened_ms = 3'000;
  first.restored = true;
  first.restored_step = -1;
  first.first_step_ms = 4'000;
  first.last_completed_ms = 23'000;
  first.completed = 19;
  first.spent.compute = 10;
  first.spent.communication = 4;
  first.spent.data = 2;
  first.spent.checkpoint = 1;
  first.spent.init = 2;
  first.last_progress_ms = 24'000;
  first.judged_ms = 24'500;
  first.ended_ms = 25'000;
  GenerationFacts second;
  second.number = 2;
  second.decided_ms = 25'000;
  second.opened_ms = 26'000;
  second.restored = true;
  second.restored_step = 9;
  second.first_step_ms = 28'000;
  second.last_completed_ms = 40'000;
  second.completed = 22;
  second.spent.compute = 9;
  second.spent.communication = 3;
  second.spent.restore = 1;
  facts.generations = {first, second};
  InterruptionFacts interruption;
  interruption.time = "2026-01-01T00:00:24.500Z";
  interruption.generation = 1;
  interruption.rank = 3;
  interruption.node = "b";
  interruption.failure_class = "infrastructure";
  interruption.reason = "rank 3 on b was killed (signal 9) at step 20";
  interruption.last_progress_ms = 24'000;
  interruption.judged_ms = 24'500;
  interruption.completed = 19;
  facts.interruptions = {interruption};
  return facts;
}

TEST(Accounting, GivesEachStretchToItsBucket) {
  const Accounting result = Account(Interrupted());
  EXPECT_EQ(result.wall_ms, 40'000);
  EXPECT_EQ(Sum(result), 40'000);  // ACCT-1
  EXPECT_EQ(result.of(Bucket::kQueued), 2'000);
  EXPECT_EQ(result.of(Bucket::kInit), 1'000 + 2'000);
  EXPECT_EQ(result.of(Bucket::kDetection), 500);
  EXPECT_EQ(result.of(Bucket::kRestart), 500 + 1'000);
  EXPECT_EQ(result.of(Bucket::kRestore), 1'000);
  EXPECT_EQ(result.of(Bucket::kCheckpoint), 1'000);
  // Steps 10..19 of 0..19 were done again: half of 16 s, and the second of the step that never
  // ended.
  EXPECT_EQ(result.of(Bucket::kLost), 8'000 + 1'000);
  EXPECT_EQ(result.of(Bucket::kCompute), 5'000 + 9'000);
  EXPECT_EQ(result.of(Bucket::kCommunication), 2'000 + 3'000);
  EXPECT_EQ(result.of(Bucket::kData), 1'000);
  EXPECT_THAT(result.ettr, DoubleNear(20.0 / 40, 1e-9));
}

TEST(Accounting, TellsWhatAnInterruptionCost) {
  const Accounting result = Account(Interrupted());
  ASSERT_EQ(result.interruptions.size(), 1u);
  EXPECT_THAT(result.interruptions[0].detected_seconds, DoubleNear(0.5, 1e-9));
  EXPECT_THAT(result.interruptions[0].recovered_seconds.value(), DoubleNear(3.5, 1e-9));
  EXPECT_EQ(result.interruptions[0].steps_lost, 10);
  EXPECT_EQ(result.steps_lost, 10);
  EXPECT_THAT(AccountingTable(result), HasSubstr("rank 3 on b was killed (signal 9) at step 20"));
}

TEST(Accounting, NotYetRecovered) {
  JobFacts facts = Interrupted();
  facts.generations.pop_back();
  facts.until_ms = 26'000;
  const Accounting result = Account(facts);
  EXPECT_FALSE(result.interruptions[0].recovered_seconds.has_value());
  EXPECT_EQ(Sum(result), 26'000);
  EXPECT_EQ(result.of(Bucket::kQueued), 2'000 + 1'000);
}

TEST(Accounting, StepsLostTwiceAreCountedOnce) {
  JobFacts facts = Interrupted();
  // A third generation goes back to the beginning: everything before it is lost.
  facts.generations[1].last_progress_ms = 40'000;
  facts.generations[1].judged_ms = 40'000;
  facts.generations[1].ended_ms = 40'000;
  GenerationFacts third;
  third.number = 3;
  third.decided_ms = 40'000;
  third.opened_ms = 40'000;
  third.restored = true;
  third.restored_step = -1;
  facts.generations.push_back(third);
  facts.until_ms = 50'000;
  const Accounting result = Account(facts);
  EXPECT_EQ(result.of(Bucket::kCompute), 0);
  EXPECT_EQ(result.of(Bucket::kLost), 16'000 + 1'000 + 12'000);
  EXPECT_EQ(Sum(result), 50'000);
}

TEST(Accounting, JsonHasTheContractsNames) {
  const nlohmann::json json = nlohmann::json::parse(AccountingJson(Account(Interrupted())));
  EXPECT_EQ(json["wall_seconds"], 40.0);
  for (const char* name : {"compute", "communication", "data", "checkpoint", "init", "restore",
                           "lost", "detection", "restart", "queued", "evaluation", "other"}) {
    EXPECT_TRUE(json["buckets_seconds"].contains(name)) << name;
  }
  EXPECT_EQ(json["buckets_seconds"].size(), kBuckets);
  const nlohmann::json& interruption = json["interruptions"][0];
  for (const char* name : {"time", "generation", "node", "rank", "class", "reason",
                           "detected_seconds", "recovered_seconds", "steps_lost"}) {
    EXPECT_TRUE(interruption.contains(name)) << name;
  }
}

TEST(Accounting, EmptyAndImpossibleFactsStillSum) {
  EXPECT_EQ(Sum(Account(JobFacts())), 0);
  JobFacts backwards;
  backwards.begun_ms = 100;
  backwards.until_ms = 50;
  EXPECT_EQ(Sum(Account(backwards)), 0);
}

// ACCT-1 for any facts at all, in order or not.
TEST(Accounting, BucketsSumToWallTimeToTheMillisecond) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto below = [&](int n) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(n));
  };
  const auto maybe = [&](int n) {
    return below(4) == 0 ? std::optional<std::int64_t>() : std::optional<std::int64_t>(below(n));
  };
  for (int round = 0; round < 2000; ++round) {
    JobFacts facts;
    facts.begun_ms = below(1000);
    facts.until_ms = facts.begun_ms + below(100'000);
    const std::int64_t count = below(6);
    for (std::int64_t i = 0; i < count; ++i) {
      GenerationFacts generation;
      generation.number = i + 1;
      generation.decided_ms = below(100'000);
      generation.opened_ms = maybe(100'000);
      generation.restored = below(2) == 0;
      generation.restored_step = below(100) - 1;
      generation.first_step_ms = maybe(100'000);
      generation.last_completed_ms = maybe(100'000);
      generation.completed = below(100) - 1;
      generation.spent.compute = static_cast<double>(below(100'000)) / 1333.0;
      generation.spent.communication = static_cast<double>(below(100'000)) / 1777.0;
      generation.spent.data = static_cast<double>(below(1000)) / 7.0;
      generation.spent.init = static_cast<double>(below(1000)) / 13.0;
      generation.spent.other = below(10) == 0 ? std::numeric_limits<double>::quiet_NaN() : 0.1;
      generation.last_progress_ms = maybe(100'000);
      generation.judged_ms = maybe(100'000);
      generation.ended_ms = maybe(100'000);
      facts.generations.push_back(generation);
    }
    const Accounting result = Account(facts);
    ASSERT_EQ(Sum(result), result.wall_ms) << "round " << round;
    for (const std::int64_t ms : result.ms) ASSERT_GE(ms, 0) << "round " << round;
    ASSERT_LE(result.ettr, 1.0);
  }
}

}  // namespace
}  // namespace perdure
