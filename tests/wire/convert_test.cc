#include "wire/convert.h"

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>

namespace perdure::wire {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// What a message means after its travel is compared as the message it would be sent on as: every
// field that is set here must have come through.
template <class Plain>
void ExpectRoundTrip(const Plain& plain) {
  const auto sent = ToProto(plain);
  const auto text = sent.SerializeAsString();
  auto received = sent;
  received.Clear();
  ASSERT_TRUE(received.ParseFromString(text));
  const auto back = FromProto(received);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  ASSERT_EQ(back->index(), plain.index());
  const auto again = ToProto(*back);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(sent, again))
      << sent.DebugString() << again.DebugString();
}

RankReport FullReport() {
  RankReport report;
  report.generation = Generation(3);
  report.rank = Rank(7);
  report.step = Step(41);
  report.completed_step = Step(40);
  report.phase = Phase::kCheckpoint;
  report.phase_name = "warm up";
  report.time_in_phase = milliseconds(1234);
  report.phase_deadline = seconds(60);
  report.communicators = {{"world", 10, 9, 8, 0xfedcba9876543210u}};
  report.samples = std::int64_t{1} << 40;
  report.loss = -0.25;
  report.loss_finite = false;
  report.time_spent = {1, 2, 3, 4, 5, 6, 7, 8};
  return report;
}

TEST(Convert, EveryRankMessage) {
  ExpectRoundTrip(RankMessage(FullReport()));
  ExpectRoundTrip(RankMessage(StoreReady{"127.0.0.1:4711"}));
  ExpectRoundTrip(RankMessage(
      RestoreDone{false, Step(20), Generation(2), {{"step-00000040.g1", "hash of \"w\""}}}));
  ExpectRoundTrip(
      RankMessage(CheckpointCommitted{Step(20), Generation(2), "5f1c", 1 << 30, 1.5, 2.5}));
  ExpectRoundTrip(RankMessage(CheckpointFailed{Step(20), "no space", 2}));
  ExpectRoundTrip(RankMessage(CheckpointSkipped{Step(30), "busy", 4}));
  CommFailure failure;
  failure.failure_class = CommFailure::Class::kNotJoined;
  failure.communicator = "world";
  failure.sequence = 12;
  failure.operation = "all_reduce f32 x 8";
  failure.bytes_done = 16;
  failure.suspects = {{Rank(2), "in phase data for 30 s"}};
  ExpectRoundTrip(RankMessage(CommFailed{failure, "rank 2 has not joined"}));
  ExpectRoundTrip(RankMessage(RankLeaving{Code::kPreempted, "wanted back", false}));
}

TEST(Convert, ReportKeepsEveryValue) {
  const Result<RankMessage> back = FromProto(ToProto(RankMessage(FullReport())));
  ASSERT_TRUE(back.ok());
  const auto& report = std::get<RankReport>(*back);
  const RankReport sent = FullReport();
  EXPECT_EQ(report.step, sent.step);
  EXPECT_EQ(report.completed_step, sent.completed_step);
  EXPECT_EQ(report.phase, sent.phase);
  EXPECT_EQ(report.phase_deadline, sent.phase_deadline);
  EXPECT_EQ(report.communicators, sent.communicators);
  EXPECT_EQ(report.loss, sent.loss);
  EXPECT_EQ(report.time_spent, sent.time_spent);
}

TEST(Convert, EveryPhaseComesBack) {
  for (int i = 0; i <= static_cast<int>(Phase::kIdle); ++i) {
    RankReport report;
    report.phase = static_cast<Phase>(i);
    const Result<RankMessage> back = FromProto(ToProto(RankMessage(report)));
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(std::get<RankReport>(*back).phase, report.phase);
    EXPECT_EQ(std::get<RankReport>(*back).step, Step(-1));
  }
}

TEST(Convert, EveryCodeComesBack) {
  for (int i = 0; i <= static_cast<int>(Code::kInternal); ++i) {
    const Result<RankMessage> back =
        FromProto(ToProto(RankMessage(RankLeaving{static_cast<Code>(i), "", true})));
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(std::get<RankLeaving>(*back).code, static_cast<Code>(i));
  }
}

TEST(Convert, EveryRankCommand) {
  ExpectRoundTrip(RankCommand(StoreAddress{"127.0.0.1:1"}));
  ExpectRoundTrip(RankCommand(PeerDead{Rank(3), "killed by signal 9 on node b"}));
  ExpectRoundTrip(RankCommand(Fenced{"generation 4 exists"}));
  ExpectRoundTrip(RankCommand(StopRank{false, "preempted"}));
  ExpectRoundTrip(RankCommand(CheckpointNow{}));
  ExpectRoundTrip(RankCommand(DumpRequest{"silent for 30 s"}));
}

TEST(Convert, WelcomeKeepsEveryValue) {
  RankWelcome welcome;
  welcome.restore.mode = ResumeMode::kRequire;
  welcome.restore.avoid = {"step-00000040.g1"};
  welcome.restore.skip_samples = {{10, 20}};
  welcome.restore.reason = "rank 3 lost";
  welcome.checkpoint.directory = "/data/checkpoints";
  welcome.checkpoint.interval_steps = 20;
  welcome.checkpoint.async_save = false;
  welcome.checkpoint.keep_last_n = 5;
  welcome.checkpoint.stop_after = 2;
  welcome.checkpoint.staging_bytes_max = 1 << 30;
  welcome.checkpoint.when_busy = SaveWhenBusy::kQueue;
  welcome.checkpoint.keep_every_steps = 100;
  welcome.checkpoint.interval_auto = true;
  welcome.checkpoint.max_lost_ms = 300'000;
  welcome.checkpoint.init_from = "/data/gpt2";
  welcome.checkpoint.init_names = {{"model.", ""}, {"model.head", "lm_head"}};
  welcome.past = {7, std::chrono::hours(30)};
  welcome.init_deadline = milliseconds(1001);
  welcome.restore_deadline = milliseconds(1002);
  welcome.collective_deadline = milliseconds(1003);
  welcome.not_joined_deadline = milliseconds(1004);
  welcome.checkpoint_deadline = milliseconds(1005);
  welcome.preemption_grace = milliseconds(1006);
  const RankWelcome back = FromProto(ToProto(welcome).welcome());
  EXPECT_EQ(back.restore, welcome.restore);
  EXPECT_EQ(back.checkpoint, welcome.checkpoint);
  EXPECT_EQ(back.past, welcome.past);
  EXPECT_EQ(back.init_deadline, welcome.init_deadline);
  EXPECT_EQ(back.restore_deadline, welcome.restore_deadline);
  EXPECT_EQ(back.collective_deadline, welcome.collective_deadline);
  EXPECT_EQ(back.not_joined_deadline, welcome.not_joined_deadline);
  EXPECT_EQ(back.checkpoint_deadline, welcome.checkpoint_deadline);
  EXPECT_EQ(back.preemption_grace, welcome.preemption_grace);
}

TEST(Convert, EveryAgentMessage) {
  NodeReport report;
  report.node = "b";
  report.ranks = {{Generation(3), Rank(7), 4242, ProcessState::kUninterruptible, 1.25, 1 << 20,
                   milliseconds(1500), FullReport()},
                  {Generation(3), Rank(8), 4243, ProcessState::kStopped, 0, 0, {}, {}}};
  ExpectRoundTrip(AgentMessage(report));
  const auto event = [](AgentEvent body) { return AgentMessage(NumberedEvent{9, body}); };
  ExpectRoundTrip(event(RankExited{
      Generation(1), Rank(2), 7, {}, RankLeaving{Code::kUserError, "boom", true}, 1.5, "boom"}));
  ExpectRoundTrip(event(RankExited{Generation(1), Rank(2), {}, 9, {}, 1.5, ""}));
  ExpectRoundTrip(event(RankStartFailed{Generation(1), Rank(2), "no such file"}));
  ExpectRoundTrip(event(GenerationEnded{Generation(1), {12, 13}}));
  ExpectRoundTrip(event(Evidence{Generation(1), "b", {{Rank(2), "main: futex"}}}));
  ExpectRoundTrip(event(FromRank<StoreReady>{Generation(1), Rank(0), {"127.0.0.1:1"}}));
  ExpectRoundTrip(event(FromRank<RestoreDone>{Generation(1), Rank(0), {}}));
  ExpectRoundTrip(event(FromRank<CheckpointCommitted>{Generation(1), Rank(0), {}}));
  ExpectRoundTrip(event(FromRank<CheckpointFailed>{Generation(1), Rank(0), {}}));
  ExpectRoundTrip(event(FromRank<CheckpointSkipped>{Generation(1), Rank(0), {}}));
  ExpectRoundTrip(event(FromRank<CommFailed>{Generation(1), Rank(0), {}}));
  ExpectRoundTrip(event(FromRank<RankLeaving>{Generation(1), Rank(0), {}}));
}

TEST(Convert, EverySupervisorCommand) {
  StartRanks start;
  start.generation = Generation(2);
  start.world_size = 4;
  start.group_rank = 1;
  start.local_world_size = 2;
  start.master_addr = "127.0.0.1";
  start.master_port = 29500;
  start.restart_count = 1;
  start.command = {"train", "--steps", "400"};
  start.env = {{"OMP_NUM_THREADS", "1"}, {"EMPTY", ""}};
  start.working_directory = "/jobs";
  start.stop_grace = milliseconds(1500);
  start.ranks = {{Rank(2), 0}, {Rank(3), 1}};
  ExpectRoundTrip(SupervisorCommand(start));
  ExpectRoundTrip(SupervisorCommand(StopGeneration{Generation(2), true, "r", seconds(15)}));
  ExpectRoundTrip(SupervisorCommand(FenceGeneration{Generation(2), "r"}));
  ExpectRoundTrip(SupervisorCommand(CollectEvidence{Generation(2), seconds(10), "r"}));
  ExpectRoundTrip(SupervisorCommand(SignalRank{Generation(2), Rank(3), 19}));
  ExpectRoundTrip(SupervisorCommand(ToRanks{Generation(2), StoreAddress{"a:1"}}));
  ExpectRoundTrip(SupervisorCommand(ToRanks{Generation(2), PeerDead{Rank(1), "r"}}));
  ExpectRoundTrip(SupervisorCommand(ToRanks{Generation(2), CheckpointNow{}}));
  ExpectRoundTrip(SupervisorCommand(ToRanks{Generation(2), DumpRequest{"r"}}));
  ExpectRoundTrip(SupervisorCommand(Acknowledge{std::numeric_limits<std::uint64_t>::max()}));
  ExpectRoundTrip(SupervisorCommand(Shutdown{"r"}));
}

TEST(Convert, HellosKeepEveryValue) {
  AgentHello hello;
  hello.job = "gpt";
  hello.node = "b";
  hello.labels = {{"zone", "1"}};
  hello.capacity = 8;
  hello.token = "t";
  hello.agent_pid = 99;
  hello.incarnation = "abc";
  hello.running = {{Generation(1), Rank(2), 3}};
  const AgentHello back = FromProto(ToProto(hello).hello());
  EXPECT_EQ(back.job, hello.job);
  EXPECT_EQ(back.node, hello.node);
  EXPECT_EQ(back.labels, hello.labels);
  EXPECT_EQ(back.capacity, hello.capacity);
  EXPECT_EQ(back.token, hello.token);
  EXPECT_EQ(back.agent_pid, hello.agent_pid);
  EXPECT_EQ(back.incarnation, hello.incarnation);
  ASSERT_EQ(back.running.size(), 1u);
  EXPECT_EQ(back.running[0].pid, 3);

  const SupervisorHello answer =
      FromProto(ToProto(SupervisorHello{4, milliseconds(600), 17}).hello());
  EXPECT_EQ(answer.term, 4);
  EXPECT_EQ(answer.lease, milliseconds(600));
  EXPECT_EQ(answer.acknowledged, 17u);

  const RankHello rank =
      FromProto(ToProto(RankHello{"gpt", Generation(1), Rank(2), 3, "token"}).hello());
  EXPECT_EQ(rank.job, "gpt");
  EXPECT_EQ(rank.generation, Generation(1));
  EXPECT_EQ(rank.rank, Rank(2));
  EXPECT_EQ(rank.pid, 3);
  EXPECT_EQ(rank.token, "token");
}

TEST(Convert, ChaosKeepsEveryValue) {
  ChaosRequest request;
  request.target = ChaosRequest::Target::kAgent;
  request.node = "b";
  request.signal = 19;
  request.at_step = Step(0);
  const Result<ChaosRequest> back = FromProto(ToProto(request));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->target, request.target);
  EXPECT_EQ(back->node, request.node);
  EXPECT_EQ(back->signal, request.signal);
  EXPECT_EQ(back->at_step, request.at_step);
  EXPECT_FALSE(FromProto(v1::ChaosRequest()).ok());
}

TEST(Convert, EmptyEnvelopesAreRefused) {
  EXPECT_EQ(FromProto(v1::RankToAgent()).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(FromProto(v1::AgentToRank()).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(FromProto(v1::AgentToSupervisor()).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(FromProto(v1::SupervisorToAgent()).status().code(), Code::kInvalidArgument);
  v1::AgentToSupervisor event;
  event.mutable_event()->set_number(1);
  EXPECT_EQ(FromProto(event).status().code(), Code::kInvalidArgument);
  event.mutable_event()->mutable_rank_exited()->set_rank(1);
  EXPECT_EQ(FromProto(event).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace perdure::wire
