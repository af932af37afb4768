// Communicators within a communicator: who belongs to which, that each works by itself, and that
// what breaks one leaves those alone that have no part in it.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/ranks.h"
#include "comm/split.h"

namespace perdure {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::RankParts;
using test::Soon;
using test::Transport;
using test::World;
using Class = CommFailure::Class;

Group Whole(int rank, std::vector<std::int64_t> job_ranks) {
  Group group{
      .name = "world", .id = "world.1", .rank = rank, .members = {}, .generation = Generation(1)};
  for (const std::int64_t job_rank : job_ranks) group.members.emplace_back(job_rank);
  return group;
}

TEST(SplitGroupTest, SortsByKeyThenRankAndKeepsTheRanksOfTheJob) {
  const std::vector<SplitWish> wishes = {{7, 5, 1}, {8, 0, 1}, {7, -1, 1}, {7, 5, 1}};
  const auto group = SplitGroup(Whole(3, {10, 11, 12, 13}), wishes);
  ASSERT_TRUE(group.ok()) << group.status().ToString();
  ASSERT_TRUE(group->has_value());
  EXPECT_EQ((*group)->members, (std::vector<Rank>{Rank(12), Rank(10), Rank(13)}));
  EXPECT_EQ((*group)->rank, 2);
  EXPECT_EQ((*group)->self(), Rank(13));
  EXPECT_EQ((*group)->id, "world.1/1.7");
}

TEST(SplitGroupTest, ANegativeColorBelongsToNone) {
  const std::vector<SplitWish> wishes = {{-1, 0, 1}, {-1, 0, 1}};
  const auto group = SplitGroup(Whole(0, {0, 1}), wishes);
  ASSERT_TRUE(group.ok()) << group.status().ToString();
  EXPECT_FALSE(group->has_value());
}

TEST(SplitGroupTest, SplitsOutOfStepAreRefused) {
  const auto group = SplitGroup(Whole(0, {0, 4}), {{0, 0, 1}, {0, 0, 2}});
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.status().code(), Code::kInvalidArgument);
  EXPECT_NE(group.status().message().find("rank 4 is at its split number 2"), std::string::npos)
      << group.status().message();
}

class SplitTest : public testing::TestWithParam<Transport> {
 protected:
  static float Sum(Communicator& communicator, float value, Status* failure = nullptr) {
    const Status status =
        communicator
            .AllReduce({.data = &value, .dtype = DType::kF32, .shape = {}}, ReduceOp::kSum, Soon())
            ->Wait(Soon());
    if (failure != nullptr) {
      *failure = status;
    } else {
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
    return value;
  }

  static std::unique_ptr<Communicator> Part(Communicator& whole, std::int64_t color,
                                            std::int64_t key = 0) {
    auto part = whole.Split(color, key, Soon());
    EXPECT_TRUE(part.ok()) << part.status().ToString();
    return part.ok() ? *std::move(part) : nullptr;
  }
};

TEST_P(SplitTest, EachPartReducesByItself) {
  World world(GetParam(), 5);
  world.Run([&](Communicator& whole, RankParts& mine) {
    // Ranks 0 2 4 backwards, 1 alone, 3 in none.
    const std::int64_t color = mine.rank == 3 ? -1 : mine.rank % 2;
    const auto part = Part(whole, color, -mine.rank);
    if (mine.rank == 3) {
      EXPECT_EQ(part, nullptr);
    } else if (mine.rank == 1) {
      EXPECT_EQ(part->size(), 1);
      EXPECT_EQ(Sum(*part, 3.f), 3.f);
    } else {
      EXPECT_EQ(part->size(), 3);
      EXPECT_EQ(part->rank(), Rank((4 - mine.rank) / 2));
      EXPECT_EQ(Sum(*part, static_cast<float>(mine.rank)), 6.f);
      // Ranks of the part, not of the job.
      std::int64_t value = mine.rank;
      EXPECT_TRUE(
          part->Broadcast({.data = &value, .dtype = DType::kI64, .shape = {}}, Rank(0), Soon())
              ->Wait(Soon())
              .ok());
      EXPECT_EQ(value, 4);
    }
    EXPECT_EQ(Sum(whole, 1.f), 5.f);
  });
}

TEST_P(SplitTest, APartSplitsAgainAndASecondSplitIsAnother) {
  World world(GetParam(), 4);
  world.Run([&](Communicator& whole, RankParts& mine) {
    const auto rows = Part(whole, mine.rank / 2);
    const auto columns = Part(whole, mine.rank % 2);
    const auto alone = Part(*rows, mine.rank);
    EXPECT_EQ(Sum(*rows, static_cast<float>(mine.rank)), mine.rank < 2 ? 1.f : 5.f);
    EXPECT_EQ(Sum(*columns, static_cast<float>(mine.rank)), mine.rank % 2 == 0 ? 2.f : 4.f);
    EXPECT_EQ(alone->size(), 1);
    EXPECT_NE(rows->name(), columns->name());
  });
}

TEST_P(SplitTest, TheDeathOfANonMemberLeavesAPartAlone) {
  World world(GetParam(), 4);
  std::atomic<int> done{0};
  world.Run([&](Communicator& whole, RankParts& mine) {
    const auto part = Part(whole, mine.rank / 2);
    if (mine.rank != 3) {
      mine.arbiter.ReportPeerDead(Rank(3), "killed by signal 9 on node b");
      while (whole.failure().ok()) std::this_thread::yield();
    }
    if (mine.rank < 2) {
      EXPECT_EQ(Sum(*part, 1.f), 2.f);
      EXPECT_TRUE(part->failure().ok());
    } else if (mine.rank == 2) {
      Status failure;
      Sum(*part, 1.f, &failure);
      ASSERT_NE(failure.comm_failure(), nullptr);
      EXPECT_EQ(failure.comm_failure()->failure_class, Class::kPeerDead);
      EXPECT_EQ(failure.comm_failure()->suspects[0].rank, Rank(3));  // of the job; 1 in the part
    }
    ++done;
    while (done < 4) std::this_thread::yield();
  });
}

TEST_P(SplitTest, ARankThatDoesNotComeIsNamedByItsRankInTheJob) {
  World world(GetParam(), 4);
  world.patience = {milliseconds(300), seconds(20)};
  std::atomic<int> done{0};
  world.Run([&](Communicator& whole, RankParts& mine) {
    const auto part = Part(whole, mine.rank / 2);
    Status failure;
    if (mine.rank == 2) {
      Sum(*part, 1.f, &failure);
      ASSERT_NE(failure.comm_failure(), nullptr) << failure.ToString();
      EXPECT_EQ(failure.comm_failure()->failure_class, Class::kNotJoined);
      ASSERT_EQ(failure.comm_failure()->suspects.size(), 1u);
      EXPECT_EQ(failure.comm_failure()->suspects[0].rank, Rank(3));
      EXPECT_NE(failure.message().find("waiting for rank 3"), std::string::npos);
    }
    ++done;
    while (done < 4) std::this_thread::yield();
    if (mine.rank < 2) {
      EXPECT_EQ(Sum(*part, 1.f), 2.f);
    }
  });
}

TEST_P(SplitTest, OppositeOrderOverTwoCommunicatorsNamesBoth) {
  World world(GetParam(), 2);
  world.Run([&](Communicator& whole, RankParts& mine) {
    const auto a = Part(whole, 0);
    const auto b = Part(whole, 0);
    if (mine.rank == 0) {
      const auto first = a->Barrier(Deadline::After(milliseconds(400)));
      const auto second = b->Barrier(Soon());
      const Status status = first->Wait(Soon());
      ASSERT_NE(status.comm_failure(), nullptr) << status.ToString();
      EXPECT_EQ(status.comm_failure()->failure_class, Class::kOrderInversion) << status.ToString();
      EXPECT_EQ(status.comm_failure()->suspects.size(), 2u) << status.ToString();
      EXPECT_NE(status.message().find(b->name()), std::string::npos) << status.ToString();
      EXPECT_TRUE(second->Wait(Soon()).ok());
    } else {
      const auto second = b->Barrier(Soon());
      const auto first = a->Barrier(Soon());
      EXPECT_TRUE(second->Wait(Soon()).ok());
      EXPECT_EQ(first->Wait(Soon()).comm_failure()->failure_class, Class::kOrderInversion);
    }
  });
}

TEST_P(SplitTest, OneReportCarriesEveryCommunicator) {
  World world(GetParam(), 2);
  world.Run([&](Communicator& whole, RankParts& mine) {
    {
      const auto part = Part(whole, 0);
      Sum(*part, 1.f);
      Sum(*part, 1.f);
      const std::vector<CommProgress> all = mine.arbiter.Progress();
      ASSERT_EQ(all.size(), 2u);
      EXPECT_EQ(all[0].communicator, whole.name());
      EXPECT_EQ(all[1].communicator, part->name());
      EXPECT_EQ(all[1].completed, 2u);
    }
    EXPECT_EQ(mine.arbiter.Progress().size(), 1u);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, SplitTest, testing::ValuesIn(test::Transports()),
                         [](const auto& test) { return test::NameOf(test.param); });

}  // namespace
}  // namespace perdure
