// The agent's parts that need no process.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "supervisor/agent/outbox.h"
#include "supervisor/agent/proc.h"
#include "supervisor/agent/process_tree.h"
#include "supervisor/agent/rank_log.h"
#include "supervisor/agent/rank_process.h"
#include "supervisor/agent/stop_sequence.h"

namespace perdure::agent {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ParseStat, NamesMayHoldAnything) {
  const auto stat =
      ParseStat("42 (a) b (c)) T 7 42 42 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 9876 1000 25 0 0",
                100, 4096);
  ASSERT_TRUE(stat.has_value());
  EXPECT_EQ(stat->pid, 42);
  EXPECT_EQ(stat->name, "a) b (c)");
  EXPECT_EQ(stat->state, 'T');
  EXPECT_EQ(stat->parent, 7);
  EXPECT_DOUBLE_EQ(stat->cpu_seconds, 2.0);
  EXPECT_EQ(stat->start_ticks, 9876u);
  EXPECT_EQ(stat->resident_bytes, 25 * 4096);
  EXPECT_EQ(StateOf(*stat), ProcessState::kStopped);
  EXPECT_FALSE(ParseStat("", 100, 4096).has_value());
  EXPECT_FALSE(ParseStat("42 (cut", 100, 4096).has_value());
  EXPECT_FALSE(ParseStat("42 (x) S 1 2", 100, 4096).has_value());
}

ProcessStat Process(pid_t pid, pid_t parent, std::uint64_t start = 1, char state = 'S') {
  ProcessStat stat;
  stat.pid = pid;
  stat.parent = parent;
  stat.start_ticks = start;
  stat.state = state;
  return stat;
}

std::vector<pid_t> Pids(const std::vector<ProcessStat>& processes) {
  std::vector<pid_t> pids;
  for (const ProcessStat& process : processes) pids.push_back(process.pid);
  return pids;
}

constexpr pid_t kAgent = 100;

class Tree : public testing::Test {
 protected:
  std::map<pid_t, std::string> markers_;
  ProcessTree tree_{kAgent, "/s:a:", [this](pid_t pid) -> std::optional<std::string> {
                      const auto found = markers_.find(pid);
                      if (found == markers_.end()) return std::nullopt;
                      return found->second;
                    }};
};

TEST_F(Tree, ChildrenBelongToTheirRank) {
  tree_.AddRoot(Process(200, kAgent), Generation(1));
  tree_.Update({Process(1, 0), Process(kAgent, 1), Process(200, kAgent), Process(201, 200),
                Process(202, 201), Process(300, 1)});
  EXPECT_EQ(Pids(tree_.Of(Generation(1))), (std::vector<pid_t>{200, 201, 202}));
  EXPECT_EQ(tree_.Alive(), std::vector<Generation>{Generation(1)});
}

TEST_F(Tree, AnOrphanStaysKnown) {
  tree_.AddRoot(Process(200, kAgent), Generation(1));
  tree_.Update({Process(kAgent, 1), Process(200, kAgent), Process(201, 200)});
  // The rank has ended; its child has become the agent's, and has a child of its own.
  tree_.Update({Process(kAgent, 1), Process(201, kAgent), Process(202, 201)});
  EXPECT_EQ(Pids(tree_.Of(Generation(1))), (std::vector<pid_t>{201, 202}));
}

TEST_F(Tree, AnOrphanNeverSeenBeforeIsKnownByItsMarker) {
  markers_[201] = "/s:a:g7";
  tree_.Update({Process(kAgent, 1), Process(201, kAgent)});
  EXPECT_EQ(Pids(tree_.Of(Generation(7))), std::vector<pid_t>{201});
}

TEST_F(Tree, AStrayBelongsToWhatIsEnding) {
  tree_.Update({Process(kAgent, 1), Process(201, kAgent)});
  EXPECT_EQ(Pids(tree_.Of(Generation(3))), std::vector<pid_t>{201});
}

TEST_F(Tree, LeftByAnEarlierAgent) {
  markers_[500] = "/s:a:g2";
  markers_[501] = "/s:b:g2";      // of another node
  markers_[502] = "/s:a:g2x";     // not a marker of ours
  markers_[503] = "/other:a:g2";  // of another job
  tree_.Update(
      {Process(kAgent, 1), Process(500, 1), Process(501, 1), Process(502, 1), Process(503, 1)});
  EXPECT_EQ(Pids(tree_.Of(Generation(2))), std::vector<pid_t>{500});
}

TEST_F(Tree, ZombiesAndReusedPidsAreNotAlive) {
  tree_.AddRoot(Process(200, kAgent, 5), Generation(1));
  tree_.Update({Process(kAgent, 1), Process(200, kAgent, 5, 'Z'), Process(201, 200)});
  EXPECT_EQ(Pids(tree_.Of(Generation(1))), std::vector<pid_t>{201});
  // 200 is somebody else now.
  tree_.Update({Process(kAgent, 1), Process(200, 1, 99)});
  EXPECT_TRUE(tree_.Of(Generation(1)).empty());
}

TEST_F(Tree, TheAgentsOwnAncestorsAndBrothersAreSafe) {
  tree_.Update({Process(1, 0), Process(50, 1), Process(kAgent, 50), Process(101, 50)});
  EXPECT_TRUE(tree_.Of(Generation(1)).empty());
  EXPECT_TRUE(tree_.Alive().empty());
}

TEST(StopSequence, EveryStageInOrder) {
  using Act = StopSequence::Act;
  const MonotonicTime start{};
  StopSequence stop(start, seconds(15));
  EXPECT_EQ(stop.Next(start, true), Act::kWait);
  EXPECT_EQ(stop.Next(start + milliseconds(99), true), Act::kWait);
  EXPECT_EQ(stop.Next(start + milliseconds(100), true), Act::kTerminate);
  EXPECT_EQ(stop.Next(start + milliseconds(120), true), Act::kWait);
  EXPECT_EQ(stop.Next(start + milliseconds(15100), true), Act::kKill);
  EXPECT_EQ(stop.Next(start + milliseconds(15120), true), Act::kKill);
  EXPECT_EQ(stop.Next(start + milliseconds(25100), true), Act::kGiveUp);
  EXPECT_EQ(stop.Next(start + milliseconds(25100), false), Act::kDone);
}

TEST(StopSequence, HastenOnlyShortens) {
  using Act = StopSequence::Act;
  const MonotonicTime start{};
  StopSequence stop(start, seconds(15));
  stop.Hasten(start, seconds(100));
  EXPECT_EQ(stop.Next(start + seconds(16), true), Act::kKill);
  StopSequence other(start, seconds(15));
  other.Hasten(start + seconds(1), Duration::zero());
  EXPECT_EQ(other.Next(start + seconds(1), true), Act::kKill);
}

std::vector<std::uint64_t> FlushedNumbers(Outbox& outbox, std::size_t at_most = 1000) {
  std::vector<std::uint64_t> numbers;
  outbox.Flush([&](const AgentMessage& message) {
    if (numbers.size() >= at_most) return false;
    numbers.push_back(std::get<NumberedEvent>(message).number);
    return true;
  });
  return numbers;
}

TEST(Outbox, SendsAgainUntilAcknowledged) {
  Outbox outbox;
  for (int i = 0; i < 3; ++i) outbox.Add(GenerationEnded{Generation(i), {}});
  EXPECT_EQ(FlushedNumbers(outbox, 2), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(FlushedNumbers(outbox), (std::vector<std::uint64_t>{3}));
  EXPECT_TRUE(FlushedNumbers(outbox).empty());
  outbox.Acknowledge(1);
  outbox.Rewind(1);
  EXPECT_EQ(FlushedNumbers(outbox), (std::vector<std::uint64_t>{2, 3}));
  outbox.Acknowledge(3);
  EXPECT_TRUE(outbox.empty());
}

TEST(Outbox, AFloodIsBoundedAndEndsAreKept) {
  Outbox outbox;
  for (std::size_t i = 0; i < kOutboxMax + 10; ++i) {
    outbox.Add(FromRank<CheckpointFailed>{Generation(1), Rank(0), {}});
  }
  EXPECT_EQ(outbox.size(), kOutboxMax);
  EXPECT_EQ(outbox.dropped(), 10u);
  outbox.Add(GenerationEnded{Generation(1), {}});
  EXPECT_EQ(outbox.size(), kOutboxMax + 1);
}

TEST(ErrorLine, TheLastThatTellsOfAFailure) {
  EXPECT_EQ(PickErrorLine("step 1\nTraceback:\nImportError: no module x\nbye\n"),
            "ImportError: no module x");
  EXPECT_EQ(PickErrorLine("one\ntwo\n\n  \n"), "two");
  EXPECT_EQ(PickErrorLine("  what():  boom  \n"), "what():  boom");
  EXPECT_EQ(PickErrorLine(""), "");
  EXPECT_EQ(PickErrorLine("error " + std::string(1000, 'x')).size(), 500u);
}

TEST(RankEnvironment, OursWinsOverTheJobFile) {
  StartRanks start;
  start.generation = Generation(3);
  start.world_size = 4;
  start.group_rank = 1;
  start.local_world_size = 2;
  start.master_addr = "127.0.0.1";
  start.master_port = 29500;
  start.restart_count = 2;
  start.welcome.checkpoint.directory = "/c";
  start.env = {{"RANK", "wrong"}, {"OMP_NUM_THREADS", "1"}};
  const auto env =
      RankEnvironment({"gpt", "b", "/s", "unix-abstract:x"}, start, {Rank(3), 1}, "tok");
  EXPECT_EQ(env.at("RANK"), "3");
  EXPECT_EQ(env.at("WORLD_SIZE"), "4");
  EXPECT_EQ(env.at("LOCAL_RANK"), "1");
  EXPECT_EQ(env.at("LOCAL_WORLD_SIZE"), "2");
  EXPECT_EQ(env.at("GROUP_RANK"), "1");
  EXPECT_EQ(env.at("MASTER_ADDR"), "127.0.0.1");
  EXPECT_EQ(env.at("MASTER_PORT"), "29500");
  EXPECT_EQ(env.at("OMP_NUM_THREADS"), "1");
  EXPECT_EQ(env.at("PERDURE_JOB"), "gpt");
  EXPECT_EQ(env.at("PERDURE_GENERATION"), "3");
  EXPECT_EQ(env.at("PERDURE_NODE"), "b");
  EXPECT_EQ(env.at("PERDURE_AGENT"), "unix-abstract:x");
  EXPECT_EQ(env.at("PERDURE_RANK_TOKEN"), "tok");
  EXPECT_EQ(env.at("PERDURE_CHECKPOINT_DIR"), "/c");
  EXPECT_EQ(env.at("PERDURE_RESTART_COUNT"), "2");
  EXPECT_EQ(env.at("PERDURE_MARKER"), "/s:b:g3");
}

}  // namespace
}  // namespace perdure::agent
