#include "runtime/process_signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/queue.h"

namespace perdure {
namespace {

using namespace std::chrono_literals;

TEST(SigtermWatch, CallsBackAndGivesTheHandlerBack) {
  BoundedQueue<int> calls(16);
  {
    auto watch = SigtermWatch::Install([&] { calls.TryPush(1); });
    ASSERT_TRUE(watch.ok());
    EXPECT_FALSE(SigtermWatch::Install([] {}).ok());  // one session at a time
    ::raise(SIGTERM);
    EXPECT_TRUE(calls.Pop(Deadline::After(10s)).has_value());
  }
  struct sigaction now {};
  ::sigaction(SIGTERM, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_DFL);
}

TEST(InForkedChild, IsTrueOnlyThere) {
  EXPECT_FALSE(InForkedChild());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(InForkedChild() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(InForkedChild());
}

}  // namespace
}  // namespace perdure
