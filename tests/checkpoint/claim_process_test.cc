// Claims between real processes on a real file system: many at once, and a saver that is stopped in
// the middle of its work, replaced, and woken again.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <set>
#include <thread>

#include "base/posix.h"
#include "checkpoint/claim.h"
#include "checkpoint/engine.h"
#include "storage/posix_files.h"
#include "support/child.h"
#include "support/temp_dir.h"

namespace perdure {
namespace {

TEST(ClaimProcessTest, EveryClaimantGetsANumberOfItsOwn) {
  constexpr int kClaimants = 12;
  TempDir dir;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < kClaimants; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      PosixFiles files;
      const Result<Generation> claimed =
          CheckpointEngine::ClaimNext(files, dir / "root", "toy", Generation(1), RealClock());
      if (!claimed.ok()) ::_exit(1);
      const char number = static_cast<char>(claimed->value());
      ::_exit(::write(ends[1], &number, 1) == 1 ? 0 : 2);
    }
    children.push_back(child);
  }
  ::close(ends[1]);
  int unlucky = 0;
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    unlucky += WEXITSTATUS(status) == 0 ? 0 : 1;
  }
  std::set<int> numbers;
  char number = 0;
  while (::read(ends[0], &number, 1) == 1) {
    EXPECT_TRUE(numbers.insert(number).second) << "twice: " << int{number};
  }
  ::close(ends[0]);
  EXPECT_EQ(unlucky, 0);
  EXPECT_EQ(numbers.size(), static_cast<std::size_t>(kClaimants));
}

TEST(ClaimProcessTest, ASaverThatWasStoppedAndReplacedFindsItselfFenced) {
  const std::uint64_t seed = RandomU64();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 10; ++round) {
    TempDir dir;
    const std::string root = dir / "root";
    Child saver({DRILL_BINARY, "save", root, "--one-generation"}, {}, dir / "saver.out");
    ASSERT_TRUE(saver.WaitForOutput("durable 1\n", Deadline::After(std::chrono::seconds(60))));
    // At any moment of its work.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    saver.Signal(SIGSTOP);
    const std::string reported = saver.Output();
    const std::size_t last = reported.rfind("durable ", reported.rfind('\n'));
    const std::string step = reported.substr(last + 8, reported.rfind('\n') - last - 8);

    Child successor({DRILL_BINARY, "check", root, step}, {}, dir / "successor.out");
    EXPECT_EQ(successor.Wait(Deadline::After(std::chrono::seconds(60))), 0) << successor.Output();
    saver.Signal(SIGCONT);
    EXPECT_EQ(saver.Wait(Deadline::After(std::chrono::seconds(60))), 1);
    EXPECT_NE(saver.Output().find("fenced"), std::string::npos) << saver.Output();
    Child again({DRILL_BINARY, "check", root, step}, {}, dir / "again.out");
    EXPECT_EQ(again.Wait(Deadline::After(std::chrono::seconds(60))), 0) << again.Output();
  }
}

}  // namespace
}  // namespace perdure
