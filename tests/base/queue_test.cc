#include "base/queue.h"

#include <gtest/gtest.h>

#include "base/backoff.h"
#include "base/thread.h"

namespace perdure {
namespace {

using namespace std::chrono_literals;

TEST(BoundedQueue, FullAndClosedAreAnswers) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(4));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(Deadline::After(1s)), 2);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(BoundedQueue, PopEndsAtItsDeadline) {
  BoundedQueue<int> queue(1);
  EXPECT_EQ(queue.Pop(Deadline::After(5ms)), std::nullopt);
}

TEST(BoundedQueue, CloseWakesWhoWaits) {
  BoundedQueue<int> queue(1);
  std::optional<int> got = 7;
  Thread reader("reader", [&] { got = queue.Pop(); });
  queue.Close();
  reader.Join();
  EXPECT_EQ(got, std::nullopt);
}

TEST(Backoff, DoublesUpToItsMost) {
  Backoff backoff(100ms, 1s, 42);
  Duration ceiling = 100ms;
  for (int i = 0; i < 20; ++i) {
    const Duration wait = backoff.Next();
    EXPECT_GE(wait, ceiling / 2);
    EXPECT_LE(wait, ceiling);
    ceiling = std::min<Duration>(ceiling * 2, 1s);
  }
}

}  // namespace
}  // namespace perdure
