#include "health/activity.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/fake_clock.h"

namespace perdure {
namespace {

using namespace std::chrono_literals;

TEST(Activity, BeginsInInitAndBooksTimeToTheInnermostPhase) {
  FakeClock clock;
  Activity activity(clock, nullptr);
  clock.Advance(2s);
  activity.SetBase(Phase::kIdle);
  const auto compute = activity.Enter(Phase::kCompute, "", std::nullopt);
  clock.Advance(3s);
  const auto save = activity.Enter(Phase::kCheckpoint, "", 30s);
  clock.Advance(1s);
  EXPECT_EQ(activity.Snapshot().phase, Phase::kCheckpoint);
  EXPECT_EQ(activity.Snapshot().phase_deadline, Duration(30s));
  EXPECT_EQ(activity.Snapshot().time_in_phase, Duration(1s));
  activity.Leave(save);
  clock.Advance(4s);
  activity.Leave(compute);
  clock.Advance(5s);

  const RankReport report = activity.Snapshot();
  EXPECT_EQ(report.phase, Phase::kIdle);
  EXPECT_DOUBLE_EQ(report.time_spent.init, 2);
  EXPECT_DOUBLE_EQ(report.time_spent.compute, 7);
  EXPECT_DOUBLE_EQ(report.time_spent.checkpoint, 1);
  EXPECT_DOUBLE_EQ(report.time_spent.other, 5);
}

TEST(Activity, AnOuterPhaseMayEndFirst) {
  FakeClock clock;
  Activity activity(clock, nullptr);
  const auto outer = activity.Enter(Phase::kEval, "validation", std::nullopt);
  const auto inner = activity.Enter(Phase::kComm, "", std::nullopt);
  clock.Advance(1s);
  activity.Leave(outer);
  EXPECT_EQ(activity.Snapshot().phase, Phase::kComm);
  EXPECT_EQ(activity.Snapshot().time_in_phase, Duration(1s));
  activity.Leave(inner);
  EXPECT_EQ(activity.Snapshot().phase, Phase::kInit);
}

TEST(Activity, ALossThatIsNotANumberIsSeen) {
  FakeClock clock;
  int changes = 0;
  Activity activity(clock, [&] { ++changes; });
  activity.BeginStep(Step(7));
  EXPECT_EQ(activity.Snapshot().completed_step, Step(-1));
  activity.EndStep(Step(7), std::numeric_limits<double>::quiet_NaN(), true, 32);
  EXPECT_FALSE(activity.Snapshot().loss_finite);
  EXPECT_EQ(activity.Snapshot().step, Step(7));
  EXPECT_EQ(activity.Snapshot().completed_step, Step(7));
  EXPECT_EQ(activity.Snapshot().samples, 32);
  EXPECT_EQ(changes, 2);
}

}  // namespace
}  // namespace perdure
