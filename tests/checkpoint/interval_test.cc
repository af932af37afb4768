// How often to save: the formulas by table, the rules, and what rank 0 makes of what it measures.
#include "checkpoint/interval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cmath>
#include <latch>
#include <random>

#include "checkpoint/pacer.h"
#include "storage/posix_files.h"
#include "support.h"
#include "support/fake_clock.h"
#include "support/temp_dir.h"

namespace perdure {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double kMinute = 60;
constexpr double kHour = 3600;

// ---------------------------------------------------------------- formulas

TEST(Interval, DalyByTable) {
  EXPECT_NEAR(BlockingOptimum(5 * kMinute, 24 * kHour) / kMinute, 117, 0.6);
  EXPECT_NEAR(BlockingOptimum(5 * kMinute, 6 * kHour) / kMinute, 57, 0.6);
  EXPECT_NEAR(BlockingOptimum(5 * kMinute, 15 * kMinute) / kMinute, 9.1, 0.1);
  // Saving costs more than there is between interruptions.
  EXPECT_EQ(BlockingOptimum(10, 5), 5);
  EXPECT_EQ(BlockingOptimum(11, 5), 5);
}

TEST(Interval, BackgroundByTable) {
  EXPECT_NEAR(BackgroundOptimum(1, 0, 60, 3 * kHour), 147, 0.5);
  EXPECT_NEAR(BackgroundOptimum(0.2, 0, 60, 3 * kHour), 66, 0.5);
  EXPECT_NEAR(BackgroundOptimum(120, 0, 0, 3 * kHour) / kMinute, 27, 0.5);
  // A second of slow-down costs what a second of standing still does.
  EXPECT_EQ(BackgroundOptimum(0, 0.02, 50, 1000), BackgroundOptimum(1, 0, 50, 1000));
}

// What an exact account loses at the chosen interval is within 2 % of what it loses at best. Time
// from restart to interruption is exponential with mean M; each stretch of work T costs d more.
double ShareLost(double interval, double cost, double mean_up) {
  // Work done per cycle until the first failure: T / (e^((T + d)/M) - 1); of M seconds.
  return 1 - interval / std::expm1((interval + cost) / mean_up) / mean_up;
}

TEST(Interval, LosesWithin2PercentOfTheNumericOptimum) {
  const std::uint64_t seed = 20261201;
  std::mt19937_64 random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (int i = 0; i < 200; ++i) {
    const double mean_up = std::exp(std::uniform_real_distribution<>(4, 13)(random));
    const double cost = mean_up * std::exp(std::uniform_real_distribution<>(-12, -2)(random));
    double best = 1;
    for (double t = cost / 20; t < 20 * mean_up; t *= 1.01) {
      best = std::min(best, ShareLost(t, cost, mean_up));
    }
    EXPECT_LE(ShareLost(BlockingOptimum(cost, mean_up), cost, mean_up), best * 1.02)
        << cost << " " << mean_up;
  }
}

TEST(Interval, MeanTimeBetweenInterruptionsFromFew) {
  // Nothing known: a day, or less in a large world; never infinite.
  EXPECT_NEAR(EstimateMeanUpSeconds(0, 0, 4), 24 * kHour, 1);
  EXPECT_NEAR(EstimateMeanUpSeconds(0, 0, 16384), 50'000.0 / 16384 * kHour, 1);
  EXPECT_LT(EstimateMeanUpSeconds(0, 30 * 24 * kHour, 4), 100 * 24 * kHour);
  // Many: what was seen.
  EXPECT_NEAR(EstimateMeanUpSeconds(1000, 1000 * kHour, 4), kHour, 0.02 * kHour);
  double last = EstimateMeanUpSeconds(0, 10 * kHour, 4);
  for (int interruptions = 1; interruptions < 20; ++interruptions) {
    const double next = EstimateMeanUpSeconds(interruptions, 10 * kHour, 4);
    EXPECT_LT(next, last);
    last = next;
  }
}

// ---------------------------------------------------------------- the choice

struct IntervalRow {
  const char* name;
  IntervalMeasured measured;
  IntervalPolicy policy;
  double seconds;
  std::int64_t steps;
  std::vector<const char*> reason;
};

TEST(Interval, ChoiceByTable) {
  const IntervalPolicy cheapest{true, {}};
  const auto lost = [](int seconds) {
    return IntervalPolicy{false, std::chrono::seconds(seconds)};
  };
  const IntervalMeasured usual{0.5, true, 0.1, 4, 0.02, true, 2 * kHour};
  IntervalMeasured unknown = usual;
  unknown.saved = false;
  IntervalMeasured slow = usual;
  slow.durable_seconds = 90;
  IntervalMeasured blocking = usual;
  blocking.behind_training = false;
  blocking.blocked_seconds = 4;
  IntervalMeasured safe = usual;
  safe.mean_up_seconds = 1e9;
  IntervalMeasured long_steps = usual;
  long_steps.step_seconds = 400;
  const IntervalRow rows[] = {
      {"the cheapest",
       usual,
       cheapest,
       std::sqrt(2 * 0.18 * 2 * kHour),
       102,
       {"every 51 s, about 102 steps", "stops the training for 0.10 s", "durable after 4.00 s",
        "slows steps by 2.0 %", "an interruption expected every 2.0 h"}},
      {"the cheapest, blocking",
       blocking,
       cheapest,
       BlockingOptimum(4, 2 * kHour),
       474,
       {"a save stops the training for 4.00 s, with"}},
      {"never more than an hour", safe, cheapest, 3600, 7200, {"never more than 60.0 min"}},
      {"nothing measured yet", unknown, cheapest, 5, 10, {"first save of a generation"}},
      {"nothing measured yet, a bound that is wider",
       unknown,
       lost(300),
       5,
       10,
       {"first save of a generation"}},
      {"nothing measured yet, a bound that is narrower",
       unknown,
       lost(3),
       3,
       6,
       {"at most 3.00 s may be lost"}},
      {"a bound", usual, lost(300), 296, 592, {"at most 5.0 min may be lost", "after 4.00 s"}},
      {"a bound, and the cheapest is cheaper",
       usual,
       {true, std::chrono::seconds(300)},
       std::sqrt(2 * 0.18 * 2 * kHour),
       102,
       {"the cheapest"}},
      {"a bound below the cheapest",
       usual,
       {true, std::chrono::seconds(30)},
       26,
       52,
       {"at most 30 s may be lost"}},
      {"writing takes longer than the bound",
       slow,
       lost(60),
       90,
       180,
       {"not sooner than the save before is durable", "up to 3.0 min may be lost after all"}},
      {"the cheapest is shorter than writing", slow, cheapest, 165, 330, {"the cheapest"}},
      {"a step is not divided",
       long_steps,
       lost(300),
       400,
       1,
       {"about 1 step:", "not sooner than the next step", "up to 6.7 min may be lost"}},
  };
  for (const IntervalRow& row : rows) {
    SCOPED_TRACE(row.name);
    const IntervalChoice choice = ChooseInterval(row.measured, row.policy);
    EXPECT_NEAR(choice.seconds, row.seconds, 0.01 * row.seconds);
    EXPECT_NEAR(static_cast<double>(choice.steps), static_cast<double>(row.steps),
                0.01 * static_cast<double>(row.steps));
    for (const char* const part : row.reason) EXPECT_THAT(choice.reason, HasSubstr(part));
    EXPECT_THAT(choice.reason, Not(HasSubstr("\n")));
  }
}

TEST(Interval, NeverBelowTheTimeUntilDurableNorAboveAnHour) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<> power(-6, 8);
  for (int i = 0; i < 2000; ++i) {
    const auto any = [&] { return std::exp(power(random)); };
    const IntervalMeasured measured{any(), true, any(), any(), std::min(1.0, any()), true, any()};
    const IntervalChoice choice = ChooseInterval(measured, {true, {}});
    ASSERT_GE(choice.seconds, measured.durable_seconds);
    ASSERT_GE(choice.seconds, measured.step_seconds);
    ASSERT_LE(choice.seconds,
              std::max({kIntervalSecondsMax, measured.durable_seconds, measured.step_seconds}));
    ASSERT_GE(choice.steps, 1);
  }
}

TEST(Interval, SmallChangesAreNotWorthAWord) {
  const auto of = [](double seconds, bool at_most = false) {
    return IntervalChoice{seconds, 1, at_most, ""};
  };
  EXPECT_FALSE(WorthChanging(of(100), of(100)));
  EXPECT_FALSE(WorthChanging(of(100), of(115)));
  EXPECT_FALSE(WorthChanging(of(100), of(85)));
  EXPECT_TRUE(WorthChanging(of(100), of(125)));
  EXPECT_TRUE(WorthChanging(of(100), of(75)));
  EXPECT_TRUE(WorthChanging(of(100, true), of(90, true)));  // the bound would be broken
  EXPECT_FALSE(WorthChanging(of(100, true), of(110, true)));
}

// ---------------------------------------------------------------- the pacer

// Rank 0's training in time that is moved by hand.
class PacerTest : public testing::Test {
 protected:
  struct World {
    double step = 1;
    double blocked = 0.1;
    double durable = 3;
    double slowdown = 0;
  };

  void Make(IntervalPolicy policy, InterruptionHistory history = {}) {
    pacer_.emplace(policy, history, 4, true, clock_);
    pacer_->Start();
  }
  void Pass(double seconds) {
    clock_.Advance(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
    now_ += seconds;
  }
  // Runs until `saves` more were taken; how long after the last one each was taken.
  std::vector<double> RunSaves(const World& world, int saves) {
    std::vector<double> gaps;
    while (static_cast<int>(gaps.size()) < saves) {
      const bool beside = durable_at_ > now_;
      Pass(world.step * (beside ? 1 + world.slowdown : 1));
      if (durable_at_ >= 0 && durable_at_ <= now_) {
        pacer_->SaveCommitted(world.durable);
        durable_at_ = -1;
      }
      // What was asked for at the end before is agreed on for this one.
      const bool save = asked_;
      asked_ = pacer_->EndStep();
      if (!save) continue;
      asked_ = false;
      gaps.push_back(now_ - captured_);
      captured_ = now_;
      pacer_->SaveBegins();
      pacer_->Stall(true);
      Pass(world.blocked);
      pacer_->Stall(false);
      durable_at_ = captured_ + world.durable;
    }
    return gaps;
  }

  FakeClock clock_;
  std::optional<Pacer> pacer_;
  double now_ = 0;
  double captured_ = 0;
  double durable_at_ = -1;
  bool asked_ = false;
};

TEST_F(PacerTest, TheFirstSaveComesEarlyAndTheOthersByTheFormula) {
  Make({true, {}}, {11, std::chrono::hours(12)});
  const std::vector<double> gaps = RunSaves(World(), 6);
  EXPECT_NEAR(gaps[0], kStepsBeforeFirstSave, 1);
  const double mean_up = EstimateMeanUpSeconds(11, 12 * kHour, 4);
  for (std::size_t i = 1; i < gaps.size(); ++i) {
    EXPECT_NEAR(gaps[i], std::sqrt(2 * 0.1 * mean_up), 0.1 * gaps[i]) << i;
  }
}

TEST_F(PacerTest, ASaveThatCostsTenTimesAsMuchIsFollowedWithinAFewSaves) {
  Make({true, {}}, {1000, std::chrono::hours(1000)});
  World world;
  world.step = 0.2;
  RunSaves(world, 10);
  world.blocked = 1;
  const std::vector<double> gaps = RunSaves(world, 6);
  EXPECT_NEAR(gaps[0], std::sqrt(2 * 0.1 * kHour), 4);
  EXPECT_NEAR(gaps[5], std::sqrt(2 * 1 * kHour), 9);
}

TEST_F(PacerTest, WhatIsWrittenBesideTheTrainingCostsWhatItSlows) {
  Make({true, {}}, {1000, std::chrono::hours(1000)});
  World world;
  world.step = 0.1;
  world.blocked = 0;
  world.durable = 20;
  world.slowdown = 0.1;
  const std::vector<double> gaps = RunSaves(world, 8);
  EXPECT_NEAR(gaps[7], std::sqrt(2 * (0.1 * 20) * kHour), 0.1 * gaps[7]);
}

TEST_F(PacerTest, NoMoreThanTheBoundIsEverLost) {
  Make({false, std::chrono::minutes(1)});
  World world;
  EXPECT_NEAR(RunSaves(world, 1)[0], kStepsBeforeFirstSave, 1);
  for (const double gap : RunSaves(world, 10)) {
    EXPECT_LE(gap + world.durable, 60.01);
    EXPECT_GT(gap, 60 - world.durable - 2.5);
  }
  // Steps become three times as long: the bound is in time, so it holds at once.
  world.step = 3;
  const std::vector<double> slower = RunSaves(world, 5);
  EXPECT_LE(slower[4] + world.durable, 60.01);
}

TEST_F(PacerTest, ARequestThatCameToNothingIsMadeAgain) {
  Make({false, std::chrono::seconds(20)});
  int asked = 0;
  for (int step = 0; step < 100; ++step) {
    Pass(1);
    asked += pacer_->EndStep() ? 1 : 0;
  }
  EXPECT_GE(asked, 5);
  EXPECT_LE(asked, 12);
}

// ---------------------------------------------------------------- all ranks

// Only rank 0 knows the interval; the others save at the same steps. Each rank's loop is held
// together by a barrier, as collectives do it.
TEST(IntervalEngine, AllRanksSaveAtTheStepsThatRank0Chose) {
  TempDir dir;
  PosixFiles files;
  const std::string root = dir / "checkpoints";
  const auto generation =
      CheckpointEngine::ClaimNext(files, root, "toy", Generation(1), RealClock());
  ASSERT_TRUE(generation.ok());
  constexpr int kWorld = 3;
  constexpr int kCommits = 3;
  Board board;
  std::barrier together(kWorld);
  std::atomic<int> commits = 0;
  std::atomic<bool> enough = false;
  std::atomic<std::int64_t> last_step = 0;
  const Deadline deadline = In(60);
  // Also a rank that fails keeps the others going.
  struct Leaving {
    std::barrier<>& barrier;
    ~Leaving() { barrier.arrive_and_drop(); }
  };
  RunRanks(kWorld, [&](int r) {
    const Leaving leaving{together};
    CheckpointOptions options = ToyOptions(root);
    options.interval.cost_optimum = true;
    options.keep_last_n = 9;
    CheckpointEvents events;
    if (r == 0) events.on_committed = [&](const CheckpointCommit&) { ++commits; };
    ToyRank rank(board, r, kWorld, *generation, files, options, events);
    ASSERT_TRUE(rank.opened.ok()) << rank.opened.ToString();
    for (std::int64_t step = 0; !enough; ++step) {
      rank.engine->BeginStep(step);
      rank.state->Set(step);
      ASSERT_TRUE(rank.engine->BeforeUpdate().ok());
      const Status ended = rank.engine->EndStep(step);
      ASSERT_TRUE(ended.ok()) << ended.ToString();
      together.arrive_and_wait();
      if (r == 0) {
        last_step = step;
        // Also without a save that is due by the formula: the first one comes by itself.
        if (commits > 0 && commits < kCommits) rank.engine->RequestSave("one more", false);
        enough = commits >= kCommits || deadline.Passed(RealClock().Now());
      }
      together.arrive_and_wait();
    }
    EXPECT_TRUE(rank.engine->Close(In(30)).ok());
  });
  EXPECT_GE(commits, kCommits);
  // Whoever ends its loop keeps nobody waiting: a later generation restores what was saved.
  const auto next = CheckpointEngine::ClaimNext(files, root, "toy", Generation(1), RealClock());
  Board second;
  RunRanks(kWorld, [&](int r) {
    ToyRank rank(second, r, kWorld, *next, files, ToyOptions(root));
    ASSERT_TRUE(rank.opened.ok()) << rank.opened.ToString();
    EXPECT_FALSE(rank.report.fresh);
    EXPECT_LE(rank.report.next_step, last_step + 1);
    EXPECT_TRUE(rank.state->Is(rank.report.next_step - 1));
  });
}

// A rank that has left is not waited for by one that asks for a save.
TEST(IntervalEngine, ARankThatHasLeftKeepsNobodyWaiting) {
  for (const int leaver : {0, 1}) {
    TempDir dir;
    PosixFiles files;
    const std::string root = dir / "checkpoints";
    const auto generation =
        CheckpointEngine::ClaimNext(files, root, "toy", Generation(1), RealClock());
    ASSERT_TRUE(generation.ok());
    Board board;
    std::latch gone(2);
    RunRanks(2, [&](int r) {
      CheckpointOptions options = ToyOptions(root);
      options.checkpoint_deadline = std::chrono::seconds(600);
      ToyRank rank(board, r, 2, *generation, files, options);
      ASSERT_TRUE(rank.opened.ok()) << rank.opened.ToString();
      if (r == leaver) {
        EXPECT_TRUE(rank.engine->Close(In(30)).ok());
      }
      gone.arrive_and_wait();
      if (r == leaver) return;
      const MonotonicTime begin = RealClock().Now();
      rank.engine->RequestSave("too late", false);
      for (std::int64_t step = 0; step < 20; ++step) {
        rank.engine->BeginStep(step);
        rank.state->Set(step);
        ASSERT_TRUE(rank.engine->EndStep(step).ok());
      }
      EXPECT_TRUE(rank.engine->Close(In(30)).ok());
      EXPECT_LT(Seconds(RealClock().Now() - begin), 60);
    });
  }
}

}  // namespace
}  // namespace perdure
