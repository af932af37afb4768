// Sessions in real processes, started as torchrun would: one to four ranks, faults and restarts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <filesystem>

#include "base/posix.h"
#include "support/child.h"
#include "support/temp_dir.h"

namespace perdure {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr auto kPatience = 60s;

// torchrun's launcher chooses MASTER_PORT before any rank exists; so must this one. Holding the
// socket (bound, not listening, SO_REUSEADDR) keeps the system from giving the number to somebody
// else.
class HeldPort {
 public:
  HeldPort() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const int on = 1;
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
    socklen_t size = sizeof(address);
    ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  int port() const { return port_; }

 private:
  UniqueFd fd_;
  int port_ = 0;
};

class SessionTest : public testing::Test {
 protected:
  // One launch of all ranks, in the environment that torchrun gives.
  std::vector<Child> Launch(int world, const std::vector<std::string>& args) {
    ++launches_;
    std::vector<Child> ranks;
    for (int rank = 0; rank < world; ++rank) {
      std::vector<std::string> argv = {DRILL_BINARY};
      argv.insert(argv.end(), args.begin(), args.end());
      std::map<std::string, std::string> env = {
          {"PERDURE_CHECKPOINT_DIR", directory_ / "ckpt"},
          {"PERDURE_CHECKPOINT_INTERVAL", "10"},
          {"PERDURE_JOB", "drill"},
      };
      if (world > 1) {
        env["RANK"] = std::to_string(rank);
        env["WORLD_SIZE"] = std::to_string(world);
        env["MASTER_ADDR"] = "127.0.0.1";
        env["MASTER_PORT"] = std::to_string(port_.port());
        env["TORCHELASTIC_RESTART_COUNT"] = std::to_string(launches_ - 1);
      }
      ranks.emplace_back(
          argv, env,
          directory_ / ("out-" + std::to_string(launches_) + "-" + std::to_string(rank)));
    }
    return ranks;
  }

  static void ExpectExits(std::vector<Child>& ranks, int code) {
    for (Child& rank : ranks) {
      const std::optional<int> exit = rank.Wait(Deadline::After(kPatience));
      ASSERT_TRUE(exit.has_value()) << rank.Output();
      EXPECT_EQ(*exit, code) << rank.Output();
    }
  }

  TempDir directory_;
  HeldPort port_;
  int launches_ = 0;
};

TEST_F(SessionTest, OneRankAloneTrainsAndResumes) {
  auto first = Launch(1, {"--steps", "25"});
  ExpectExits(first, 0);
  EXPECT_THAT(first[0].Output(), HasSubstr("rank 0 generation 1 begins at 0"));
  auto second = Launch(1, {"--steps", "45"});
  ExpectExits(second, 0);
  EXPECT_THAT(second[0].Output(), HasSubstr("rank 0 generation 2 begins at 21"));
}

TEST_F(SessionTest, FourRanksTrainAndResume) {
  auto first = Launch(4, {"--steps", "25"});
  ExpectExits(first, 0);
  auto second = Launch(4, {"--steps", "45"});
  ExpectExits(second, 0);
  for (const Child& rank : second)
    EXPECT_THAT(rank.Output(), HasSubstr("generation 2 begins at 21"));
}

TEST_F(SessionTest, ADeadRankIsNamedByEverySurvivorAndTheNextLaunchResumes) {
  auto ranks = Launch(4, {"--steps", "1000000", "--fault", "kill", "--at", "35", "--rank", "2"});
  EXPECT_EQ(ranks[2].Wait(Deadline::After(kPatience)), 128 + SIGKILL);
  for (const int survivor : {0, 1, 3}) {
    EXPECT_EQ(ranks[survivor].Wait(Deadline::After(kPatience)), 1);
    EXPECT_THAT(ranks[survivor].Output(), HasSubstr("rank 2"));
  }
  auto again = Launch(4, {"--steps", "50"});
  ExpectExits(again, 0);
  EXPECT_THAT(again[0].Output(), testing::ContainsRegex("generation 2 begins at (21|31)"));
}

TEST_F(SessionTest, SigtermToOneRankTakesOneCheckpointOnAll) {
  auto ranks = Launch(4, {"--steps", "1000000", "--pause-ms", "1", "--fault", "sigterm", "--at",
                          "33", "--rank", "1"});
  ExpectExits(ranks, 143);
  auto again = Launch(4, {"--steps", "3000"});
  ExpectExits(again, 0);
  // Where all ranks stopped, they go on; the checkpoint of the schedule at 30 was not the last.
  EXPECT_THAT(again[0].Output(),
              testing::ContainsRegex("generation 2 begins at (3[5-9]|[4-9][0-9]|[0-9]{3,})"));
}

TEST_F(SessionTest, AnExceptionOutOfTheBodyIsUserCodesFailureWithItsText) {
  auto ranks = Launch(1, {"--steps", "100", "--fault", "throw", "--at", "5", "--rank", "0"});
  ExpectExits(ranks, 1);
  EXPECT_THAT(ranks[0].Output(), HasSubstr("error: the data is cursed"));
}

TEST_F(SessionTest, AForkedChildIsInert) {
  auto ranks = Launch(2, {"--steps", "30", "--fault", "fork", "--at", "5", "--rank", "1"});
  ExpectExits(ranks, 0);
}

TEST_F(SessionTest, AWrongEnvironmentIsOneLineAndExitTwo) {
  Child rank({DRILL_BINARY, "--steps", "1"}, {{"RANK", "0"}}, directory_ / "out");
  EXPECT_EQ(rank.Wait(Deadline::After(kPatience)), 2);
  EXPECT_THAT(rank.Output(),
              HasSubstr("error: environment variable RANK is set but WORLD_SIZE is not"));
}

}  // namespace
}  // namespace perdure
