// Both ends of each stream in one process, over real sockets.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "perdure/v1/key_value.grpc.pb.h"
#include "wire/agent_port.h"
#include "wire/channel.h"
#include "wire/control_client.h"
#include "wire/duplex.h"
#include "wire/rank_port.h"

namespace perdure::wire {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline Soon() {
  return Deadline::After(seconds(20));
}

// Lines that several threads write and the test waits for.
class Record {
 public:
  void Add(std::string line) {
    MutexLock lock(mutex_);
    lines_.push_back(std::move(line));
    changed_.NotifyAll();
  }

  // False after 20 s without it. Each line is found once.
  bool WaitFor(const std::string& line) {
    const Deadline deadline = Soon();
    MutexLock lock(mutex_);
    for (;;) {
      for (std::size_t i = 0; i < lines_.size(); ++i) {
        if (lines_[i] != line) continue;
        lines_.erase(lines_.begin() + static_cast<std::ptrdiff_t>(i));
        return true;
      }
      if (!changed_.WaitUntil(mutex_, deadline)) return false;
    }
  }

  std::vector<std::string> lines() {
    MutexLock lock(mutex_);
    return lines_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> lines_ PERDURE_GUARDED_BY(mutex_);
};

std::string Describe(const RankMessage& message) {
  if (const auto* report = std::get_if<RankReport>(&message)) {
    return "report " + std::to_string(report->step.value());
  }
  if (const auto* ready = std::get_if<StoreReady>(&message)) return "store " + ready->address;
  if (const auto* leaving = std::get_if<RankLeaving>(&message))
    return "leaving " + leaving->message;
  return "other";
}

std::string Describe(const RankCommand& command) {
  if (const auto* store = std::get_if<StoreAddress>(&command)) return "store " + store->address;
  if (const auto* stop = std::get_if<StopRank>(&command)) return "stop " + stop->reason;
  return "other";
}

TEST(Channel, MayBeLetGoOfByACallback) {
  // The only channel of the process, and what holds it: the call's context among them.
  struct Call {
    std::unique_ptr<v1::KeyValueStore::Stub> stub;
    grpc::ClientContext context;
    v1::SetRequest request;
    v1::SetResponse response;
  };
  Record record;
  {
    auto channel = MakeChannel("unix-abstract:perdure-nobody-there");
    ASSERT_TRUE(channel.ok()) << channel.status().ToString();
    auto* const call = new Call;
    call->stub = v1::KeyValueStore::NewStub(*std::move(channel));
    call->stub->async()->Set(&call->context, &call->request, &call->response,
                             [call, &record](const grpc::Status& status) {
                               delete call;
                               record.Add(status.ok() ? "answered" : "failed");
                             });
  }
  EXPECT_TRUE(record.WaitFor("failed"));
  // gRPC still works, on the same threads.
  const auto again = MakeChannel("unix-abstract:perdure-nobody-there");
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE((*again)->WaitForConnected(std::chrono::system_clock::now() + milliseconds(10)));
}

class RankStream : public testing::Test {
 protected:
  void OpenPort() {
    RankPort::Handler handler;
    handler.on_hello = [this](const RankHello& hello) -> Result<RankWelcome> {
      if (hello.token != "right") return Status(Code::kFailedPrecondition, "wrong token");
      if (hello.generation != Generation(2))
        return Status(Code::kFenced, "generation 2 is current");
      // Sent before the hello is answered, and still behind the welcome.
      port_.Send(hello.generation, hello.rank, StoreAddress{"early"});
      RankWelcome welcome;
      welcome.restore.reason = "because";
      return welcome;
    };
    handler.on_message = [this](Generation, Rank, const RankMessage& message) {
      at_agent_.Add(Describe(message));
    };
    handler.on_disconnected = [this](Generation, Rank rank) {
      at_agent_.Add("gone " + ToString(rank));
    };
    ASSERT_TRUE(port_.Open(std::move(handler)).ok());
  }

  Result<RankWelcome> Dial(GrpcSupervisorLink& link, RankHello hello) {
    return link.Open(
        hello, [this](const RankCommand& command) { at_rank_.Add(Describe(command)); },
        [this] { at_rank_.Add("lost"); }, Soon());
  }

  static RankHello Hello() { return {"job", Generation(2), Rank(3), 42, "right"}; }

  Record at_agent_;
  Record at_rank_;
  GrpcRankPort port_;
};

TEST_F(RankStream, HelloThenBothDirections) {
  OpenPort();
  GrpcSupervisorLink link(port_.address());
  const Result<RankWelcome> welcome = Dial(link, Hello());
  ASSERT_TRUE(welcome.ok()) << welcome.status().ToString();
  EXPECT_EQ(welcome->restore.reason, "because");
  EXPECT_TRUE(at_rank_.WaitFor("store early"));
  EXPECT_TRUE(link.Send(StoreReady{"here"}).ok());
  EXPECT_TRUE(at_agent_.WaitFor("store here"));
  EXPECT_TRUE(port_.Send(Generation(2), Rank(3), StopRank{true, "now"}));
  EXPECT_TRUE(at_rank_.WaitFor("stop now"));
  EXPECT_FALSE(port_.Send(Generation(2), Rank(4), StopRank{true, "nobody"}));

  // What is queued at Close arrives.
  EXPECT_TRUE(link.Send(RankLeaving{Code::kOk, "bye", true}).ok());
  link.Close(Soon());
  EXPECT_TRUE(at_agent_.WaitFor("leaving bye"));
  EXPECT_TRUE(at_agent_.WaitFor("gone 3"));
  EXPECT_FALSE(link.Send(StoreReady{"late"}).ok());
  EXPECT_EQ(at_rank_.lines(), std::vector<std::string>());  // closing is not losing
}

TEST_F(RankStream, RefusalsCarryCodeAndText) {
  OpenPort();
  RankHello hello = Hello();
  hello.token = "wrong";
  GrpcSupervisorLink wrong(port_.address());
  const Result<RankWelcome> refused = Dial(wrong, hello);
  EXPECT_EQ(refused.status().code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.status().message().find("wrong token"), std::string::npos);
  hello = Hello();
  hello.generation = Generation(1);
  GrpcSupervisorLink old(port_.address());
  EXPECT_EQ(Dial(old, hello).status().code(), Code::kFenced);
  EXPECT_EQ(at_agent_.lines(), std::vector<std::string>());
}

TEST_F(RankStream, NobodyThere) {
  GrpcSupervisorLink link("unix-abstract:perdure-test-nobody-listens-here");
  EXPECT_EQ(Dial(link, Hello()).status().code(), Code::kUnavailable);
}

TEST_F(RankStream, AgentLeavesMeansLost) {
  OpenPort();
  GrpcSupervisorLink link(port_.address());
  ASSERT_TRUE(Dial(link, Hello()).ok());
  port_.Close(Soon());
  EXPECT_TRUE(at_rank_.WaitFor("lost"));
  EXPECT_FALSE(link.Send(StoreReady{"late"}).ok());
}

TEST_F(RankStream, NewConnectionReplacesTheOld) {
  OpenPort();
  GrpcSupervisorLink first(port_.address());
  ASSERT_TRUE(Dial(first, Hello()).ok());
  GrpcSupervisorLink second(port_.address());
  ASSERT_TRUE(Dial(second, Hello()).ok());
  EXPECT_TRUE(at_rank_.WaitFor("lost"));
  EXPECT_TRUE(second.Send(StoreReady{"second"}).ok());
  EXPECT_TRUE(at_agent_.WaitFor("store second"));
  EXPECT_EQ(at_agent_.lines(), std::vector<std::string>());  // no "gone": the key has a stream
}

TEST_F(RankStream, AStalledReceiverBoundsTheQueue) {
  // The agent's handler does not return, so nothing more is read, and the rank's messages pile up.
  Mutex mutex;
  CondVar changed;
  bool go_on = false;
  RankPort::Handler handler;
  handler.on_hello = [](const RankHello&) -> Result<RankWelcome> { return RankWelcome(); };
  handler.on_message = [&](Generation, Rank, const RankMessage&) {
    MutexLock lock(mutex);
    while (!go_on) changed.Wait(mutex);
  };
  handler.on_disconnected = [](Generation, Rank) {};
  ASSERT_TRUE(port_.Open(std::move(handler)).ok());
  GrpcSupervisorLink link(port_.address());
  ASSERT_TRUE(Dial(link, Hello()).ok());
  const CheckpointFailed big{Step(1), std::string(64 << 10, 'x'), 1};
  Status last;
  std::size_t sent = 0;
  while (last.ok() && sent < 10 * kStreamQueueMax) {
    last = link.Send(big);
    ++sent;
  }
  EXPECT_EQ(last.code(), Code::kResourceExhausted);
  {
    MutexLock lock(mutex);
    go_on = true;
    changed.NotifyAll();
  }
  link.Close(Soon());
}

// ---------------------------------------------------------------- agents

class FakeControl : public JobControl {
 public:
  Result<std::string> StatusJson() override { return std::string("{\"phase\":\"running\"}"); }
  Status Events(std::int64_t first, bool follow, Deadline,
                const std::function<bool(const std::string&)>& on_event) override {
    for (std::int64_t i = first; i <= 3; ++i) {
      if (!on_event("event " + std::to_string(i))) return Ok();
    }
    if (follow && !ended) return Status(Code::kDeadlineExceeded, "nothing new");
    return Ok();
  }
  Status Stop(const std::string& reason) override {
    return Status(Code::kFailedPrecondition, "cannot stop: " + reason);
  }
  Status Chaos(const ChaosRequest& request) override {
    return request.rank == Rank(1) ? Ok() : Status(Code::kNotFound, "no such rank");
  }
  std::atomic<bool> ended{false};
};

class AgentStream : public testing::Test {
 protected:
  std::unique_ptr<GrpcAgentPort> OpenPort(const std::string& listen) {
    auto port = std::make_unique<GrpcAgentPort>(
        GrpcAgentPort::Options{listen, "token", [this](const std::string& address) {
                                 MutexLock lock(mutex_);
                                 address_ = address;
                                 return Ok();
                               }});
    port->ServeControl(control_);
    AgentPort::Handler handler;
    handler.on_hello = [this](const AgentHello& hello) -> Result<SupervisorHello> {
      if (hello.node == "fenced") return Status(Code::kFenced, "node fenced");
      at_supervisor_.Add("hello " + hello.node);
      return SupervisorHello{1, seconds(600), 5};
    };
    handler.on_message = [this](const std::string& node, const AgentMessage& message) {
      const auto* event = std::get_if<NumberedEvent>(&message);
      at_supervisor_.Add(node + (event ? " event " + std::to_string(event->number) : " report"));
    };
    handler.on_disconnected = [this](const std::string& node) {
      at_supervisor_.Add("gone " + node);
    };
    EXPECT_TRUE(port->Open(std::move(handler)).ok());
    return port;
  }

  std::string Address() {
    MutexLock lock(mutex_);
    return address_;
  }

  std::unique_ptr<GrpcSupervisorPort> Agent(const std::string& node, const std::string& token) {
    auto agent =
        std::make_unique<GrpcSupervisorPort>([this]() -> Result<std::string> { return Address(); });
    SupervisorPort::Handler handler;
    handler.hello = [node, token] {
      AgentHello hello;
      hello.node = node;
      hello.token = token;
      return hello;
    };
    handler.on_connected = [this](const SupervisorHello& hello) {
      at_agent_.Add("connected " + std::to_string(hello.acknowledged));
    };
    handler.on_command = [this](const SupervisorCommand& command) {
      at_agent_.Add(std::holds_alternative<Shutdown>(command) ? "shutdown" : "other");
    };
    handler.on_refused = [this](const Status& status) {
      at_agent_.Add("refused " + std::string(NameOf(status.code())));
    };
    handler.on_disconnected = [this] { at_agent_.Add("disconnected"); };
    EXPECT_TRUE(agent->Open(std::move(handler)).ok());
    return agent;
  }

  Mutex mutex_;
  std::string address_ PERDURE_GUARDED_BY(mutex_);
  FakeControl control_;
  Record at_supervisor_;
  Record at_agent_;
};

TEST_F(AgentStream, MessagesBothWays) {
  const auto port = OpenPort("127.0.0.1:0");
  const auto agent = Agent("a", "token");
  ASSERT_TRUE(at_agent_.WaitFor("connected 5"));
  EXPECT_TRUE(agent->Send(NumberedEvent{1, GenerationEnded{Generation(1), {}}}));
  EXPECT_TRUE(agent->Send(NodeReport{"a", {}}));
  EXPECT_TRUE(at_supervisor_.WaitFor("a event 1"));
  EXPECT_TRUE(at_supervisor_.WaitFor("a report"));
  EXPECT_TRUE(port->Send("a", Shutdown{"over"}));
  EXPECT_TRUE(at_agent_.WaitFor("shutdown"));
  EXPECT_FALSE(port->Send("b", Shutdown{"nobody"}));
  agent->Close(Soon());
  EXPECT_TRUE(at_supervisor_.WaitFor("gone a"));
}

TEST_F(AgentStream, DialsAgainWhenTheSupervisorIsBackElsewhere) {
  auto port = OpenPort("127.0.0.1:0");
  const auto agent = Agent("a", "token");
  ASSERT_TRUE(at_agent_.WaitFor("connected 5"));
  port->Close(Soon());
  port.reset();
  EXPECT_TRUE(at_agent_.WaitFor("disconnected"));
  EXPECT_FALSE(agent->Send(NodeReport{"a", {}}));
  port = OpenPort("127.0.0.1:0");
  EXPECT_TRUE(at_agent_.WaitFor("connected 5"));
  agent->Close(Soon());
}

TEST_F(AgentStream, RefusedAgentsDoNotDialAgain) {
  const auto port = OpenPort("127.0.0.1:0");
  const auto wrong = Agent("a", "wrong");
  EXPECT_TRUE(at_agent_.WaitFor("refused failed_precondition"));
  const auto fenced = Agent("fenced", "token");
  EXPECT_TRUE(at_agent_.WaitFor("refused fenced"));
  wrong->Close(Soon());
  fenced->Close(Soon());
  EXPECT_EQ(at_agent_.lines(), std::vector<std::string>());
}

TEST_F(AgentStream, CommandLine) {
  const auto port = OpenPort("127.0.0.1:0");
  GrpcJobControl control(Address(), "token", seconds(10));
  const Result<std::string> status = control.StatusJson();
  ASSERT_TRUE(status.ok()) << status.status().ToString();
  EXPECT_EQ(*status, "{\"phase\":\"running\"}");
  EXPECT_EQ(control.Stop("tea").message(), "cannot stop: tea");
  ChaosRequest chaos;
  chaos.rank = Rank(1);
  EXPECT_TRUE(control.Chaos(chaos).ok());
  chaos.rank = Rank(2);
  EXPECT_EQ(control.Chaos(chaos).code(), Code::kNotFound);

  std::vector<std::string> events;
  const auto take = [&](const std::string& json) {
    events.push_back(json);
    return true;
  };
  EXPECT_TRUE(control.Events(2, false, Soon(), take).ok());
  EXPECT_EQ(events, (std::vector<std::string>{"event 2", "event 3"}));
  events.clear();
  // Follows until the job ends, and sends nothing twice.
  EXPECT_TRUE(control
                  .Events(1, true, Soon(),
                          [&](const std::string& json) {
                            events.push_back(json);
                            if (events.size() == 3) control_.ended = true;
                            return true;
                          })
                  .ok());
  EXPECT_EQ(events.size(), 3u);

  GrpcJobControl stranger(Address(), "guess", seconds(10));
  EXPECT_EQ(stranger.StatusJson().status().code(), Code::kFailedPrecondition);
}

TEST(LocalAddress, OnlyWhereNobodyElseListens) {
  for (const char* good :
       {"127.0.0.1:0", "127.1.2.3:80", "localhost:1", "[::1]:1", "unix:/x", "unix-abstract:x"}) {
    EXPECT_TRUE(CheckLocalAddress(good).ok()) << good;
  }
  for (const char* bad :
       {"0.0.0.0:1", "10.0.0.1:1", "[::]:1", "example.com:1", "127.evil.com:1", "127.0.0.1"}) {
    const Status status = CheckLocalAddress(bad);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << bad;
  }
  EXPECT_NE(CheckLocalAddress("0.0.0.0:1").message().find("TLS"), std::string::npos);
  GrpcAgentPort port(GrpcAgentPort::Options{"0.0.0.0:0", "", {}});
  EXPECT_EQ(port.Open({}).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace perdure::wire
