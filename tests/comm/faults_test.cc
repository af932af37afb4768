// What can go wrong between ranks, with ranks as threads: each fault gives an error on every rank
// that names the right one, within its bound, and leaves the process fit for the next communicator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "comm/ranks.h"

namespace perdure {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::RankParts;
using test::Soon;
using test::Transport;
using test::World;
using Class = CommFailure::Class;

std::vector<std::int64_t> SuspectsOf(const Status& status) {
  std::vector<std::int64_t> ranks;
  if (status.comm_failure() == nullptr) return ranks;
  for (const CommFailure::Suspect& suspect : status.comm_failure()->suspects) {
    ranks.push_back(suspect.rank.value());
  }
  return ranks;
}

Class ClassOf(const Status& status) {
  return status.comm_failure() == nullptr ? Class::kLocalError
                                          : status.comm_failure()->failure_class;
}

Status AllReduce(Communicator& world, std::size_t count, Deadline deadline = Soon()) {
  std::vector<float> values(count, 1.f);
  return world
      .AllReduce({.data = values.data(),
                  .dtype = DType::kF32,
                  .shape = {static_cast<std::int64_t>(count)}},
                 ReduceOp::kSum, deadline)
      ->Wait(deadline);
}

// A gate that opens once.
class Signal {
 public:
  void Set() {
    MutexLock lock(mutex_);
    set_ = true;
    changed_.NotifyAll();
  }
  void Wait() {
    MutexLock lock(mutex_);
    while (!set_) changed_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool set_ PERDURE_GUARDED_BY(mutex_) = false;
};

std::size_t EntriesIn(const char* directory) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(directory),
                                                std::filesystem::directory_iterator()));
}

class FaultsTest : public testing::TestWithParam<Transport> {};

// Small operations travel in one frame, large ones along the ring: both must fail alike.
constexpr std::size_t kFaultCounts[] = {10, 500000};

TEST_P(FaultsTest, AbortFromAnotherThreadEndsWhatWaitsAndTellsThePeers) {
  for (const std::size_t count : kFaultCounts) {
    World world(GetParam(), 2);
    Signal aborted;
    world.Run([&](Communicator& communicator, RankParts& mine) {
      if (mine.rank == 1) {
        aborted.Wait();
        const Status status = AllReduce(communicator, count);
        EXPECT_EQ(ClassOf(status), Class::kAborted) << status.ToString();
        EXPECT_EQ(SuspectsOf(status), std::vector<std::int64_t>{0});
        EXPECT_NE(status.message().find("enough of this"), std::string::npos) << status.message();
        return;
      }
      std::vector<float> values(count);
      const auto work = communicator.AllReduce({.data = values.data(),
                                                .dtype = DType::kF32,
                                                .shape = {static_cast<std::int64_t>(count)}},
                                               ReduceOp::kSum, Soon());
      const auto queued = communicator.Barrier(Soon());
      while (ProgressOf(communicator).started == 0) std::this_thread::yield();
      const MonotonicTime begin = RealClock().Now();
      communicator.Abort(Status(Code::kAborted, "enough of this"));
      const Status status = work->Wait(Soon());
      EXPECT_LT(RealClock().Now() - begin, milliseconds(100));
      EXPECT_EQ(ClassOf(status), Class::kAborted) << status.ToString();
      EXPECT_EQ(queued->Wait(Soon()).code(), Code::kCommFailed);
      EXPECT_EQ(communicator.Barrier(Soon())->Wait(Soon()).code(), Code::kCommFailed);
      aborted.Set();
    });
  }
}

TEST_P(FaultsTest, AbortAndRebuildLeakNothing) {
  World world(GetParam(), 2);
  std::atomic<int> descriptors{0};
  std::atomic<int> threads{0};
  for (int round = 1; round <= 12; ++round) {
    std::atomic<int> reduced{0};
    world.RunOwning(
        [&](std::unique_ptr<Communicator> communicator, RankParts&) {
          EXPECT_TRUE(AllReduce(*communicator, 1000).ok());
          ++reduced;
          while (reduced < 2) std::this_thread::yield();
          communicator->Abort(Status(Code::kAborted, "next"));
        },
        round);
    // The first rounds load what is loaded lazily.
    if (round == 2) {
      descriptors = static_cast<int>(EntriesIn("/proc/self/fd"));
      threads = static_cast<int>(EntriesIn("/proc/self/task"));
    }
  }
  EXPECT_EQ(EntriesIn("/proc/self/fd"), static_cast<std::size_t>(descriptors.load()));
  EXPECT_EQ(EntriesIn("/proc/self/task"), static_cast<std::size_t>(threads.load()));
}

TEST_P(FaultsTest, ACountThatDiffersNamesTheOddRankOnAll) {
  for (const std::size_t count : kFaultCounts) {
    World world(GetParam(), 3);
    world.Run([&](Communicator& communicator, RankParts& mine) {
      ASSERT_TRUE(AllReduce(communicator, count).ok());
      const Status status = AllReduce(communicator, mine.rank == 1 ? 2 * count : count);
      EXPECT_EQ(ClassOf(status), Class::kMismatch) << status.ToString();
      EXPECT_EQ(SuspectsOf(status), std::vector<std::int64_t>{1}) << status.ToString();
      EXPECT_NE(status.message().find("all_reduce f32 x " + std::to_string(count)),
                std::string::npos)
          << status.message();
      EXPECT_NE(status.message().find("all_reduce f32 x " + std::to_string(2 * count)),
                std::string::npos)
          << status.message();
    });
  }
}

TEST_P(FaultsTest, BetweenTwoRanksAMismatchNamesBothCalls) {
  World world(GetParam(), 2);
  world.Run([&](Communicator& communicator, RankParts& mine) {
    std::vector<float> values(300000);
    const TensorView view{.data = values.data(), .dtype = DType::kF32, .shape = {300000}};
    const Status status = (mine.rank == 0 ? communicator.AllReduce(view, ReduceOp::kMax, Soon())
                                          : communicator.Broadcast(view, Rank(0), Soon()))
                              ->Wait(Soon());
    EXPECT_EQ(ClassOf(status), Class::kMismatch) << status.ToString();
    EXPECT_EQ(SuspectsOf(status), (std::vector<std::int64_t>{0, 1})) << status.ToString();
  });
}

TEST_P(FaultsTest, WhatTheSupervisorTellsEndsPendingOperationsAtOnce) {
  for (const std::size_t count : kFaultCounts) {
    World world(GetParam(), 3);
    std::atomic<int> waiting{0};
    std::atomic<int> done{0};
    Signal all_done;
    world.Run([&](Communicator& communicator, RankParts& mine) {
      if (mine.rank == 2) {
        all_done.Wait();  // dead, as far as the others know
        return;
      }
      std::vector<float> values(count);
      const auto work = communicator.AllReduce({.data = values.data(),
                                                .dtype = DType::kF32,
                                                .shape = {static_cast<std::int64_t>(count)}},
                                               ReduceOp::kSum, Soon());
      while (ProgressOf(communicator).started == 0) std::this_thread::yield();
      ++waiting;
      while (waiting < 2) std::this_thread::yield();
      const MonotonicTime begin = RealClock().Now();
      mine.arbiter.ReportPeerDead(Rank(2), "killed by signal 9 on node b");
      const Status status = work->Wait(Soon());
      EXPECT_LT(RealClock().Now() - begin, seconds(1));
      EXPECT_EQ(ClassOf(status), Class::kPeerDead) << status.ToString();
      EXPECT_EQ(SuspectsOf(status), std::vector<std::int64_t>{2});
      EXPECT_NE(status.message().find(
                    "rank 2 is dead: killed by signal 9 on node b (told by the supervisor)"),
                std::string::npos)
          << status.message();
      if (++done == 2) all_done.Set();
    });
  }
}

TEST_P(FaultsTest, WhatTheSupervisorTellsBetweenOperationsBreaksTheCommunicatorToo) {
  World world(GetParam(), 2);
  Signal done;
  world.Run([&](Communicator& communicator, RankParts& mine) {
    if (mine.rank == 1) return done.Wait();
    mine.arbiter.ReportPeerDead(Rank(1), "exited with code 1");
    while (communicator.failure().ok()) std::this_thread::yield();
    EXPECT_EQ(SuspectsOf(communicator.failure()), std::vector<std::int64_t>{1});
    EXPECT_EQ(SuspectsOf(communicator.Barrier(Soon())->Wait(Soon())), std::vector<std::int64_t>{1});
    done.Set();
  });
}

TEST_P(FaultsTest, ARankThatDoesNotCallIsNamedWithWhereItIs) {
  for (const std::size_t count : kFaultCounts) {
    World world(GetParam(), 3);
    world.patience = {milliseconds(200), seconds(20)};
    std::atomic<int> done{0};
    Signal all_done;
    world.Run([&](Communicator& communicator, RankParts& mine) {
      ASSERT_TRUE(communicator.Barrier(Soon())->Wait(Soon()).ok());
      if (mine.rank == 1) {
        all_done.Wait();
        EXPECT_EQ(SuspectsOf(AllReduce(communicator, count)), std::vector<std::int64_t>{1});
        return;
      }
      const Status status = AllReduce(communicator, count);
      EXPECT_EQ(ClassOf(status), Class::kNotJoined) << status.ToString();
      EXPECT_EQ(SuspectsOf(status), std::vector<std::int64_t>{1}) << status.ToString();
      EXPECT_NE(status.message().find("waiting for rank 1: it has not called operation 2"),
                std::string::npos)
          << status.message();
      EXPECT_EQ(status.comm_failure()->sequence, 2u);
      if (++done == 2) all_done.Set();
    });
  }
}

// COMM-4: the budget for running does not begin before everybody has joined.
TEST_P(FaultsTest, ALateRankIsNotAHungOne) {
  for (const std::size_t count : kFaultCounts) {
    World world(GetParam(), 3);
    world.patience = {seconds(20), milliseconds(1000)};
    world.Run([&](Communicator& communicator, RankParts& mine) {
      if (mine.rank == 1) {
        const Deadline late = Deadline::After(milliseconds(1500));
        while (!late.Passed(RealClock().Now())) std::this_thread::yield();
      }
      const Status status = AllReduce(communicator, count);
      EXPECT_TRUE(status.ok()) << status.ToString();
    });
  }
}

TEST_P(FaultsTest, TheCallersOwnDeadlineEndsTheOperation) {
  World world(GetParam(), 2);
  Signal done;
  world.Run([&](Communicator& communicator, RankParts& mine) {
    if (mine.rank == 1) return done.Wait();
    const MonotonicTime begin = RealClock().Now();
    const auto work = communicator.Barrier(Deadline::After(milliseconds(100)));
    const Status status = work->Wait(Soon());
    EXPECT_EQ(ClassOf(status), Class::kNotJoined) << status.ToString();
    EXPECT_LT(RealClock().Now() - begin, seconds(5));
    done.Set();
  });
}

TEST_P(FaultsTest, WaitingIsBoundedAndLeavesTheOperationRunning) {
  World world(GetParam(), 2);
  Signal waited;
  world.Run([&](Communicator& communicator, RankParts& mine) {
    if (mine.rank == 1) waited.Wait();
    const auto work = communicator.Barrier(Soon());
    if (mine.rank == 0) {
      EXPECT_EQ(work->Wait(Deadline::After(milliseconds(20))).code(), Code::kDeadlineExceeded);
      EXPECT_FALSE(work->Test());
      waited.Set();
    }
    EXPECT_TRUE(work->Wait(Soon()).ok());
  });
}

// Large enough that a send waits for its receiver.
constexpr std::size_t kWaitsForPeer = 500000;

Status SendTo(Communicator& communicator, int peer, std::size_t count) {
  std::vector<float> values(count, 1.f);
  return communicator
      .Send({.data = values.data(),
             .dtype = DType::kF32,
             .shape = {static_cast<std::int64_t>(count)}},
            Rank(peer), Soon())
      ->Wait(Soon());
}

Status RecvFrom(Communicator& communicator, int peer, std::size_t count) {
  std::vector<float> values(count);
  return communicator
      .Recv({.data = values.data(),
             .dtype = DType::kF32,
             .shape = {static_cast<std::int64_t>(count)}},
            Rank(peer), Soon())
      ->Wait(Soon());
}

TEST_P(FaultsTest, ASendOfAnotherSizeIsAMismatchOfTheTwo) {
  for (const std::size_t count : kFaultCounts) {
    World world(GetParam(), 3);
    Signal done;
    std::atomic<int> ended{0};
    world.Run([&](Communicator& communicator, RankParts& mine) {
      if (mine.rank == 2) return done.Wait();
      const Status status =
          mine.rank == 0 ? SendTo(communicator, 1, count) : RecvFrom(communicator, 0, count + 1);
      // A small send is gone before anybody looks at it.
      if (mine.rank == 1 || !status.ok()) {
        EXPECT_EQ(ClassOf(status), Class::kMismatch) << status.ToString();
        EXPECT_EQ(SuspectsOf(status).size(), 2u) << status.ToString();
      }
      if (++ended == 2) done.Set();
    });
  }
}

TEST_P(FaultsTest, TheEndOfAChainOfReceivesIsToBlame) {
  World world(GetParam(), 4);
  world.patience = {milliseconds(400), seconds(20)};
  Signal done;
  std::atomic<int> ended{0};
  world.Run([&](Communicator& communicator, RankParts& mine) {
    if (mine.rank == 3) return done.Wait();  // never comes
    const Status status = RecvFrom(communicator, mine.rank + 1, kWaitsForPeer);
    EXPECT_EQ(ClassOf(status), Class::kNotJoined) << status.ToString();
    EXPECT_EQ(SuspectsOf(status), std::vector<std::int64_t>{3}) << status.ToString();
    if (++ended == 3) done.Set();
  });
}

TEST_P(FaultsTest, SendsInACircleAreNamedAsSuch) {
  World world(GetParam(), 3);
  world.patience = {milliseconds(400), seconds(20)};
  world.Run([&](Communicator& communicator, RankParts& mine) {
    const Status status = SendTo(communicator, (mine.rank + 1) % 3, kWaitsForPeer);
    EXPECT_EQ(ClassOf(status), Class::kOrderInversion) << status.ToString();
    EXPECT_EQ(SuspectsOf(status), (std::vector<std::int64_t>{0, 1, 2})) << status.ToString();
  });
}

TEST_P(FaultsTest, LeavingFirstIsNoFailureUntilItIsMissed) {
  World world(GetParam(), 3);
  Signal left;
  Signal seen[3];
  world.RunOwning([&](std::unique_ptr<Communicator> communicator, RankParts& mine) {
    ASSERT_TRUE(AllReduce(*communicator, 1000).ok());
    if (mine.rank == 0) {
      communicator.reset();
      left.Set();
      return;
    }
    left.Wait();
    EXPECT_TRUE(communicator->failure().ok());
    seen[mine.rank].Set();
    seen[3 - mine.rank].Wait();  // the first to miss it tells the other
    const Status status = communicator->Barrier(Soon())->Wait(Soon());
    EXPECT_EQ(ClassOf(status), Class::kNotJoined) << status.ToString();
    EXPECT_EQ(SuspectsOf(status), std::vector<std::int64_t>{0}) << status.ToString();
    EXPECT_NE(status.message().find("left in good order"), std::string::npos) << status.message();
  });
}

TEST_P(FaultsTest, DestroyingWithOperationsInFlightIsBoundedAndTold) {
  World world(GetParam(), 2);
  Signal gone;
  world.RunOwning([&](std::unique_ptr<Communicator> communicator, RankParts& mine) {
    if (mine.rank == 0) {
      const auto work = communicator->Barrier(Soon());
      const MonotonicTime begin = RealClock().Now();
      communicator.reset();
      EXPECT_LT(RealClock().Now() - begin, seconds(5));
      EXPECT_EQ(work->Wait(Soon()).code(), Code::kCommFailed);
      gone.Set();
      return;
    }
    gone.Wait();
    const Status status = communicator->Barrier(Soon())->Wait(Soon());
    EXPECT_EQ(SuspectsOf(status), std::vector<std::int64_t>{0}) << status.ToString();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, FaultsTest, testing::ValuesIn(test::Transports()),
                         [](const auto& test) { return test::NameOf(test.param); });

#ifdef PERDURE_TEST_GLOO
TEST(RendezvousTest, MissingRanksAreNamedAndAnotherTryWorks) {
  World world(Transport::kGloo, 3);
  std::atomic<int> failed{0};
  world.RunParts([&](RankParts& mine) {
    if (mine.rank != 2) {
      const MonotonicTime begin = RealClock().Now();
      const auto missing = world.Build(mine, 1, Deadline::After(milliseconds(400)));
      ASSERT_FALSE(missing.ok());
      EXPECT_LT(RealClock().Now() - begin, seconds(4));
      EXPECT_EQ(ClassOf(missing.status()), Class::kNotJoined);
      EXPECT_EQ(SuspectsOf(missing.status()), std::vector<std::int64_t>{2})
          << missing.status().ToString();
      ++failed;
    }
    while (failed < 2) std::this_thread::yield();
    const auto communicator = world.Build(mine, 2, Soon());
    ASSERT_TRUE(communicator.ok()) << communicator.status().ToString();
    EXPECT_TRUE(AllReduce(**communicator, 100).ok());
  });
}

TEST(RendezvousTest, ADeathDuringInitEndsTheWaitEarly) {
  World world(Transport::kGloo, 2);
  world.RunParts([&](RankParts& mine) {
    if (mine.rank == 1) return;
    mine.arbiter.ReportPeerDead(Rank(1), "killed by signal 11 on node a");
    const MonotonicTime begin = RealClock().Now();
    const auto communicator = world.Build(mine, 1, Soon());
    ASSERT_FALSE(communicator.ok());
    EXPECT_LT(RealClock().Now() - begin, seconds(5));
    EXPECT_NE(communicator.status().message().find("killed by signal 11 on node a"),
              std::string::npos)
        << communicator.status().message();
  });
}

TEST(RendezvousTest, AnotherWorldSizeIsRefused) {
  StoreServer store{Generation(1)};
  std::vector<Thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back("rank", [&, rank] {
      RankParts mine(store, rank);
      CommunicatorOptions options;
      options.rank = Rank(rank);
      options.size = 2 + rank;
      const auto communicator =
          CreateCommunicator(options, mine.parts(), Deadline::After(seconds(3)));
      ASSERT_FALSE(communicator.ok());
      EXPECT_NE(communicator.status().message().find("world of"), std::string::npos)
          << communicator.status().ToString();
    });
  }
}

TEST(RendezvousTest, AnInterfaceThatDoesNotExistIsNamed) {
  StoreServer store{Generation(1)};
  RankParts mine(store, 0);
  CommunicatorOptions options;
  options.size = 2;
  options.gloo.interface = "nosuch0";
  const auto communicator = CreateCommunicator(options, mine.parts(), Soon());
  ASSERT_FALSE(communicator.ok());
  EXPECT_EQ(communicator.status().code(), Code::kInvalidArgument);
  EXPECT_NE(communicator.status().message().find("nosuch0"), std::string::npos);
}
#endif

}  // namespace
}  // namespace perdure
