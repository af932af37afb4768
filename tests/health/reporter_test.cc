#include "health/reporter.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/queue.h"

namespace perdure {
namespace {

using namespace std::chrono_literals;

// Keeps what was sent, with the time of its arrival.
class RecordingLink final : public SupervisorLink {
 public:
  Result<RankWelcome> Open(const RankHello&, std::function<void(const RankCommand&)>,
                           std::function<void()>, Deadline) override {
    return RankWelcome();
  }
  Status Send(const RankMessage& message) override {
    sent.TryPush({std::get<RankReport>(message), std::chrono::steady_clock::now()});
    return Ok();
  }
  void Close(Deadline) override {}

  BoundedQueue<std::pair<RankReport, MonotonicTime>> sent{1000};
};

TEST(Reporter, ReportsOnItsOwnAndSoonerWhenNudged) {
  RecordingLink link;
  std::atomic<int> step{0};
  Reporter reporter(link, [&] {
    RankReport report;
    report.step = Step(step.load());
    return report;
  });
  const auto first = link.sent.Pop(Deadline::After(10s));
  const auto second = link.sent.Pop(Deadline::After(10s));  // nobody nudged
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_GE(second->second - first->second, kReportInterval);

  step = 5;
  reporter.Nudge();
  const auto third = link.sent.Pop(Deadline::After(10s));
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(third->first.step, Step(5));
  EXPECT_GE(third->second - second->second, kReportIntervalLeast);
}

TEST(Reporter, SendsALastReportWhenItEnds) {
  RecordingLink link;
  std::atomic<int> step{0};
  {
    Reporter reporter(link, [&] {
      RankReport report;
      report.step = Step(step.load());
      return report;
    });
    link.sent.Pop(Deadline::After(10s));
    step = 9;
  }
  link.sent.Close();
  std::optional<std::pair<RankReport, MonotonicTime>> last;
  while (auto next = link.sent.Pop()) last = next;
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->first.step, Step(9));
}

}  // namespace
}  // namespace perdure
