#include "control/store_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "base/thread.h"
#include "control/memory_key_value.h"
#include "perdure/clock.h"

namespace perdure {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline Soon() {
  return Deadline::After(seconds(20));
}

TEST(StoreServerTest, SetThenGet) {
  StoreServer store{Generation(1)};
  MemoryKeyValue kv(store, Generation(1));
  ASSERT_TRUE(kv.Set("/a", "1", Soon()).ok());
  ASSERT_TRUE(kv.Set("/a", std::string("two\0parts", 9), Soon()).ok());
  EXPECT_EQ(*kv.Get("/a", Soon()), std::string("two\0parts", 9));
}

TEST(StoreServerTest, AnotherGenerationIsRefusedAndToldWhy) {
  StoreServer store{Generation(2)};
  MemoryKeyValue old(store, Generation(1));
  const Status set = old.Set("/a", "1", Soon());
  EXPECT_EQ(set.code(), Code::kFenced);
  EXPECT_EQ(set.message(), "the control store is of generation 2, the request of generation 1");
  EXPECT_EQ(old.Get("/a", Soon()).status().code(), Code::kFenced);
  EXPECT_EQ(old.Add("/a", 1, Soon()).status().code(), Code::kFenced);
  EXPECT_EQ(old.CompareAndSet("/a", "", "1", Soon()).status().code(), Code::kFenced);
  EXPECT_EQ(store.waiters(), 0u);
}

TEST(StoreServerTest, GetWaitsForTheKeyAndNamesItWhenItDoesNotCome) {
  StoreServer store{Generation(1)};
  MemoryKeyValue kv(store, Generation(1));
  const Result<std::string> missing = kv.Get("/never", Deadline::After(milliseconds(20)));
  EXPECT_EQ(missing.status().code(), Code::kDeadlineExceeded);
  EXPECT_NE(missing.status().message().find("/never"), std::string::npos);
  EXPECT_EQ(store.waiters(), 0u);

  Thread setter("setter", [&] {
    while (store.waiters() == 0) std::this_thread::yield();
    EXPECT_TRUE(kv.Set("/later", "here", Soon()).ok());
  });
  EXPECT_EQ(*kv.Get("/later", Soon()), "here");
}

TEST(StoreServerTest, ManyWaitersNeedNoThreadsAndAllAreAnsweredOnce) {
  StoreServer store{Generation(1)};
  constexpr int kWaiters = 10000;
  std::atomic<int> answers{0};
  std::vector<StoreServer::WaiterId> ids;
  for (int i = 0; i < kWaiters; ++i) {
    ids.push_back(store.Get(Generation(1), "/go", [&](Result<std::string> value) {
      EXPECT_EQ(*value, "now");
      ++answers;
    }));
  }
  for (int i = 0; i < kWaiters / 2; ++i) EXPECT_TRUE(store.Cancel(ids[i]));
  ASSERT_TRUE(store.Set(Generation(1), "/go", "now").ok());
  EXPECT_EQ(answers, kWaiters / 2);
  EXPECT_FALSE(store.Cancel(ids.back()));
  EXPECT_FALSE(store.Cancel(ids.front()));
  EXPECT_EQ(store.waiters(), 0u);
}

TEST(StoreServerTest, WaitersAreBounded) {
  StoreServer store{Generation(1)};
  const auto ignore = [](const Result<std::string>&) {};
  for (std::size_t i = 0; i < kStoreWaitersMax; ++i) store.Get(Generation(1), "/x", ignore);
  Code code = Code::kOk;
  EXPECT_EQ(store.Get(Generation(1), "/x",
                      [&](const Result<std::string>& value) { code = value.status().code(); }),
            0u);
  EXPECT_EQ(code, Code::kResourceExhausted);
}

TEST(StoreServerTest, AddCountsFromZeroAndARepeatedRequestOnce) {
  StoreServer store{Generation(1)};
  EXPECT_EQ(*store.Add(Generation(1), "/n", 5, "op-1"), 5);
  EXPECT_EQ(*store.Add(Generation(1), "/n", 5, "op-1"), 5);
  EXPECT_EQ(*store.Add(Generation(1), "/n", -7, "op-2"), -2);
  ASSERT_TRUE(store.Set(Generation(1), "/text", "abc").ok());
  EXPECT_EQ(store.Add(Generation(1), "/text", 1, "").status().code(), Code::kFailedPrecondition);
  ASSERT_TRUE(store.Set(Generation(1), "/big", "9223372036854775807").ok());
  EXPECT_EQ(store.Add(Generation(1), "/big", 1, "").status().code(), Code::kInvalidArgument);
}

TEST(StoreServerTest, ConcurrentAddsLoseNothing) {
  StoreServer store{Generation(1)};
  MemoryKeyValue kv(store, Generation(1));
  {
    std::vector<Thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back("adder", [&] {
        for (int i = 0; i < 500; ++i) EXPECT_TRUE(kv.Add("/n", 1, Soon()).ok());
      });
    }
  }
  EXPECT_EQ(*kv.Get("/n", Soon()), "2000");
}

TEST(StoreServerTest, CompareAndSetHasOneWinner) {
  StoreServer store{Generation(1)};
  MemoryKeyValue kv(store, Generation(1));
  EXPECT_EQ(*kv.CompareAndSet("/first", "", "rank 3", Soon()), "rank 3");
  EXPECT_EQ(*kv.CompareAndSet("/first", "", "rank 1", Soon()), "rank 3");
  EXPECT_EQ(*kv.CompareAndSet("/first", "rank 3", "rank 2", Soon()), "rank 2");
}

TEST(StoreServerTest, ForgetRemovesWhatBeginsWithThePrefixAndNothingElse) {
  StoreServer store{Generation(1)};
  MemoryKeyValue kv(store, Generation(1));
  for (const char* key : {"/a", "/a/1", "/a/2", "/ab", "/b"}) {
    ASSERT_TRUE(kv.Set(key, key, Soon()).ok());
  }
  ASSERT_TRUE(kv.Forget("/a/", Soon()).ok());
  ASSERT_TRUE(kv.Forget("/none", Soon()).ok());
  EXPECT_EQ(store.keys(), 3u);
  EXPECT_EQ(*kv.Get("/ab", Soon()), "/ab");
  EXPECT_EQ(kv.Get("/a/1", Deadline::After(milliseconds(1))).status().code(),
            Code::kDeadlineExceeded);
  ASSERT_TRUE(kv.Set("/a/1", "anew", Soon()).ok());
  EXPECT_EQ(*kv.Get("/a/1", Soon()), "anew");
  EXPECT_EQ(kv.Forget("", Soon()).code(), Code::kInvalidArgument);
  EXPECT_EQ(store.Forget(Generation(2), "/a").code(), Code::kFenced);
}

TEST(StoreServerTest, KeysAndValuesAreBounded) {
  StoreServer store{Generation(1)};
  EXPECT_EQ(store.Set(Generation(1), "", "x").code(), Code::kInvalidArgument);
  EXPECT_EQ(store.Set(Generation(1), std::string(kStoreKeyBytesMax + 1, 'k'), "x").code(),
            Code::kInvalidArgument);
  EXPECT_TRUE(store.Set(Generation(1), "/v", std::string(kKeyValueBytesMax, 'v')).ok());
  EXPECT_EQ(store.Set(Generation(1), "/v", std::string(kKeyValueBytesMax + 1, 'v')).code(),
            Code::kInvalidArgument);
  Status full = Ok();
  for (int i = 0; full.ok() && i < 200; ++i) {
    full = store.Set(Generation(1), "/v" + std::to_string(i), std::string(kKeyValueBytesMax, 'v'));
  }
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
}

TEST(StoreServerTest, CloseAnswersWaitersAndRefusesTheRest) {
  StoreServer store{Generation(1)};
  Code code = Code::kOk;
  store.Get(Generation(1), "/x",
            [&](const Result<std::string>& value) { code = value.status().code(); });
  store.Close();
  EXPECT_EQ(code, Code::kUnavailable);
  EXPECT_EQ(store.Set(Generation(1), "/x", "1").code(), Code::kUnavailable);
}

TEST(StoreServerTest, ClosingAConnectionWakesItsWaitersAndNoOthers) {
  StoreServer store{Generation(1)};
  MemoryKeyValue closing(store, Generation(1));
  MemoryKeyValue other(store, Generation(1));
  Thread waiter("waiter", [&] {
    EXPECT_EQ(closing.Get("/x", Soon()).status().code(), Code::kAborted);
    EXPECT_EQ(closing.Set("/x", "1", Soon()).code(), Code::kAborted);
    EXPECT_TRUE(other.Set("/x", "1", Soon()).ok());
  });
  while (store.waiters() == 0) std::this_thread::yield();
  Thread closer("closer", [&] {
    while (store.waiters() < 2) std::this_thread::yield();
    closing.Close();
  });
  EXPECT_EQ(*other.Get("/x", Soon()), "1");
}

}  // namespace
}  // namespace perdure
