#include "runtime/orders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/thread.h"

namespace perdure {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

Orders::Actions Record(std::vector<std::string>& acts) {
  return {
      [&acts](const Status& why) { acts.push_back("leave: " + why.ToString()); },
      [&acts](Rank rank, const std::string& reason) {
        acts.push_back("peer " + ToString(rank) + " dead: " + reason);
      },
      [&acts](const std::string& reason, bool then_leave) {
        acts.push_back("save: " + reason + (then_leave ? ", then leave" : ""));
      },
  };
}

TEST(Orders, WhatComesBeforeTheRoomsIsKept) {
  Orders orders;
  std::vector<std::string> acts;
  orders.Take(PeerDead{Rank(3), "signal 9"});
  orders.Take(CheckpointNow{});
  EXPECT_THAT(acts, ElementsAre());
  orders.Connect(Record(acts));
  EXPECT_THAT(acts, ElementsAre("peer 3 dead: signal 9", "save: asked for by the supervisor"));
}

TEST(Orders, TheFirstReasonToLeaveStays) {
  Orders orders;
  std::vector<std::string> acts;
  orders.Connect(Record(acts));
  orders.Take(StopRank{true, "rank 3 died"});
  orders.Take(Fenced{"generation 4 exists"});
  EXPECT_THAT(acts, ElementsAre("leave: aborted: rank 3 died"));
  EXPECT_EQ(orders.leaving()->message(), "rank 3 died");
}

TEST(Orders, SigtermIsAPreemptionUnlessAlreadyLeaving) {
  Orders orders;
  std::vector<std::string> acts;
  orders.Connect(Record(acts));
  orders.TakeSigterm();
  orders.Take(StopRank{false, "the scheduler wants node a back"});
  orders.Take(StopRank{true, "stop"});
  orders.TakeSigterm();
  EXPECT_THAT(acts, ElementsAre("save: SIGTERM, then leave",
                                "save: the scheduler wants node a back, then leave",
                                "leave: aborted: stop"));
}

TEST(Orders, NothingHappensAfterDisconnect) {
  Orders orders;
  std::vector<std::string> acts;
  orders.Connect(Record(acts));
  orders.Disconnect();
  orders.Take(CheckpointNow{});
  EXPECT_THAT(acts, ElementsAre());
}

TEST(Orders, WaitingForTheStoreEndsWithItsAddressAReasonToLeaveOrTheDeadline) {
  {
    Orders orders;
    EXPECT_EQ(orders.WaitForStoreAddress(Deadline::After(1ms)).status().code(),
              Code::kDeadlineExceeded);
    Thread later("later", [&] { orders.Take(StoreAddress{"127.0.0.1:7"}); });
    EXPECT_EQ(*orders.WaitForStoreAddress(Deadline::After(10s)), "127.0.0.1:7");
  }
  Orders orders;
  Thread later("later", [&] { orders.Take(Fenced{"too late"}); });
  EXPECT_EQ(orders.WaitForStoreAddress(Deadline::After(10s)).status().code(), Code::kFenced);
}

}  // namespace
}  // namespace perdure
