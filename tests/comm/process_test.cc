// Ranks as processes: one is killed or stopped while all of them reduce, and every survivor must
// name exactly it.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "support/child.h"
#include "support/temp_dir.h"

namespace perdure {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kSize = 4;

Deadline Soon() {
  return Deadline::After(seconds(20));
}

class Ranks {
 public:
  Ranks(std::size_t elements, milliseconds not_joined, milliseconds running, int operations = 0) {
    std::string address = "-";
    for (int rank = 0; rank < kSize; ++rank) {
      ranks_.push_back(std::make_unique<Child>(
          std::vector<std::string>{PERDURE_RANK_PROCESS, std::to_string(rank),
                                   std::to_string(kSize), address, std::to_string(elements),
                                   std::to_string(not_joined.count()),
                                   std::to_string(running.count()), std::to_string(operations)},
          std::map<std::string, std::string>{}, directory_ / std::to_string(rank)));
      if (rank > 0) continue;
      EXPECT_TRUE(ranks_[0]->WaitForOutput(";", Soon()));
      const std::string output = ranks_[0]->Output();
      const std::size_t begin = output.find("STORE ") + 6;
      address = output.substr(begin, output.find(';', begin) - begin);
    }
  }

  Child& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }

  void AwaitRunning() {
    for (auto& rank : ranks_) {
      ASSERT_TRUE(rank->WaitForOutput("RUNNING;", Soon())) << rank->Output();
    }
  }

 private:
  TempDir directory_;
  std::vector<std::unique_ptr<Child>> ranks_;
};

// Everybody but `victim` says `expected` before the deadline and leaves in good order.
void ExpectVerdict(Ranks& ranks, int victim, const std::string& expected, Deadline deadline) {
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == victim) continue;
    EXPECT_TRUE(ranks[rank].WaitForOutput(expected, deadline))
        << "rank " << rank << ": " << ranks[rank].Output();
  }
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(ranks[rank].Wait(Soon()), 0) << "rank " << rank << ": " << ranks[rank].Output();
    EXPECT_NE(ranks[rank].Output().find("LEFT;"), std::string::npos);
  }
}

class ProcessTest : public testing::TestWithParam<std::tuple<int, std::size_t>> {
 protected:
  int victim() const { return std::get<0>(GetParam()); }
  std::size_t elements() const { return std::get<1>(GetParam()); }
  std::string Victim() const { return " suspects " + std::to_string(victim()) + " :"; }
};

TEST_P(ProcessTest, EverySurvivorNamesTheKilledRankWithinTwoSeconds) {
  Ranks ranks(elements(), seconds(20), seconds(20));
  ranks.AwaitRunning();
  ranks[victim()].Signal(SIGKILL);
  ExpectVerdict(ranks, victim(), "FAILED peer_dead" + Victim(), Deadline::After(seconds(2)));
}

TEST_P(ProcessTest, AStoppedRankIsNamedAfterTheDeadlineAndFailsWhenItWakes) {
  Ranks ranks(elements(), milliseconds(1000), milliseconds(1000));
  ranks.AwaitRunning();
  ranks[victim()].Signal(SIGSTOP);
  // The budget, the roll call, the verdict, and what a busy machine adds.
  ExpectVerdict(ranks, victim(), Victim(), Deadline::After(seconds(6)));
  ranks[victim()].Signal(SIGCONT);
  EXPECT_EQ(ranks[victim()].Wait(Soon()), 0) << ranks[victim()].Output();
  EXPECT_NE(ranks[victim()].Output().find("FAILED"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Victims, ProcessTest,
                         testing::Combine(testing::Values(0, 1, 2, 3),
                                          testing::Values(std::size_t{1000}, std::size_t{1000000})),
                         [](const auto& test) {
                           return "Rank" + std::to_string(std::get<0>(test.param)) + "Elements" +
                                  std::to_string(std::get<1>(test.param));
                         });

TEST(ProcessOrderTest, LeavingInAnyOrderIsNoFailure) {
  for (int round = 0; round < 3; ++round) {
    Ranks ranks(100000, seconds(20), seconds(20), 20);
    for (int rank = kSize - 1; rank >= 1; --rank) {
      EXPECT_EQ(ranks[rank].Wait(Soon()), 0);
      EXPECT_EQ(ranks[rank].Output().find("FAILED"), std::string::npos) << ranks[rank].Output();
    }
    EXPECT_EQ(ranks[0].Wait(Soon()), 0);
    EXPECT_EQ(ranks[0].Output().find("FAILED"), std::string::npos) << ranks[0].Output();
  }
}

}  // namespace
}  // namespace perdure
