#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/thread.h"
#include "control/store_server.h"
#include "perdure/clock.h"
#include "wire/key_value_client.h"
#include "wire/key_value_server.h"

namespace perdure {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline Soon() {
  return Deadline::After(seconds(20));
}

class KeyValueWireTest : public testing::Test {
 protected:
  void SetUp() override {
    auto server = KeyValueServer::Start(store_, "127.0.0.1");
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = *std::move(server);
    client_ = ConnectKeyValue(server_->address(), Generation(7));
  }

  StoreServer store_{Generation(7)};
  std::unique_ptr<KeyValueServer> server_;
  std::unique_ptr<KeyValue> client_;
};

TEST_F(KeyValueWireTest, TheVerbs) {
  ASSERT_TRUE(client_->Set("/a", std::string("bin\0ary\xff", 8), Soon()).ok());
  EXPECT_EQ(*client_->Get("/a", Soon()), std::string("bin\0ary\xff", 8));
  EXPECT_EQ(*client_->Add("/n", 41, Soon()), 41);
  EXPECT_EQ(*client_->Add("/n", 1, Soon()), 42);
  EXPECT_EQ(*client_->CompareAndSet("/c", "", "mine", Soon()), "mine");
  EXPECT_EQ(*client_->CompareAndSet("/c", "", "yours", Soon()), "mine");
  ASSERT_TRUE(client_->Forget("/c", Soon()).ok());
  EXPECT_EQ(*client_->CompareAndSet("/c", "", "yours", Soon()), "yours");
}

TEST_F(KeyValueWireTest, ALargeValueTravelsAndATooLargeOneIsRefused) {
  const std::string large(kKeyValueBytesMax, 'x');
  ASSERT_TRUE(client_->Set("/large", large, Soon()).ok());
  EXPECT_EQ(*client_->Get("/large", Soon()), large);
  EXPECT_EQ(client_->Set("/large", large + "x", Soon()).code(), Code::kInvalidArgument);
}

TEST_F(KeyValueWireTest, AnotherGenerationIsFenced) {
  const auto old = ConnectKeyValue(server_->address(), Generation(6));
  EXPECT_EQ(old->Set("/a", "1", Soon()).code(), Code::kFenced);
  EXPECT_EQ(old->Get("/a", Soon()).status().code(), Code::kFenced);
  EXPECT_EQ(old->Add("/a", 1, Soon()).status().code(), Code::kFenced);
  EXPECT_EQ(old->CompareAndSet("/a", "", "1", Soon()).status().code(), Code::kFenced);
}

TEST_F(KeyValueWireTest, GetWaitsOnTheServerAndItsDeadlineNamesTheKey) {
  const Result<std::string> missing = client_->Get("/never", Deadline::After(milliseconds(50)));
  EXPECT_EQ(missing.status().code(), Code::kDeadlineExceeded);
  EXPECT_NE(missing.status().message().find("/never"), std::string::npos)
      << missing.status().message();

  Thread setter("setter", [&] {
    while (store_.waiters() == 0) std::this_thread::yield();
    EXPECT_TRUE(client_->Set("/later", "here", Soon()).ok());
  });
  EXPECT_EQ(*client_->Get("/later", Soon()), "here");
}

TEST_F(KeyValueWireTest, ManyClientsWaitAtOnce) {
  constexpr int kClients = 32;
  std::atomic<int> answered{0};
  {
    std::vector<Thread> threads;
    for (int i = 0; i < kClients; ++i) {
      threads.emplace_back("getter", [&] {
        const Result<std::string> value = client_->Get("/go", Soon());
        EXPECT_TRUE(value.ok()) << value.status().ToString();
        ++answered;
      });
    }
    while (store_.waiters() < kClients) std::this_thread::yield();
    ASSERT_TRUE(client_->Set("/go", "now", Soon()).ok());
  }
  EXPECT_EQ(answered, kClients);
}

TEST_F(KeyValueWireTest, AHostThatIsGoneIsNamedAtOnce) {
  ASSERT_TRUE(client_->Set("/a", "1", Soon()).ok());
  server_->Stop(Deadline::After(seconds(5)));
  const MonotonicTime begin = RealClock().Now();
  const Status gone = client_->Set("/a", "2", Soon());
  EXPECT_EQ(gone.code(), Code::kUnavailable);
  EXPECT_NE(gone.message().find("the control store at " + server_->address() +
                                " (rank 0) is unreachable"),
            std::string::npos)
      << gone.message();
  EXPECT_LT(RealClock().Now() - begin, seconds(5));
}

TEST_F(KeyValueWireTest, StoppingAnswersThoseWhoWait) {
  Thread getter("getter", [&] {
    EXPECT_EQ(client_->Get("/never", Soon()).status().code(), Code::kUnavailable);
  });
  while (store_.waiters() == 0) std::this_thread::yield();
  server_->Stop(Deadline::After(seconds(5)));
}

TEST_F(KeyValueWireTest, ATakenPortIsRefusedInWords) {
  const std::string address = server_->address();
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  StoreServer other{Generation(8)};
  const auto second = KeyValueServer::Start(other, "127.0.0.1", port);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_NE(second.status().message().find(address), std::string::npos);
}

TEST_F(KeyValueWireTest, ClosingTheClientWakesWhoWaitsAndLeavesTheStore) {
  const auto other = ConnectKeyValue(server_->address(), Generation(7));
  Thread getter("getter", [&] {
    EXPECT_EQ(client_->Get("/x", Soon()).status().code(), Code::kAborted);
    EXPECT_EQ(client_->Set("/x", "1", Soon()).code(), Code::kAborted);
  });
  while (store_.waiters() == 0) std::this_thread::yield();
  client_->Close();
  getter.Join();
  EXPECT_TRUE(other->Set("/x", "1", Soon()).ok());
}

}  // namespace
}  // namespace perdure
