// Random lives of a job: whatever happens in whatever order, the invariants hold after every event
// (the script checks them), the journal alone gives the same state, and the job ends or trains on.
#include <gtest/gtest.h>

#include <random>

#include "supervisor/core/script.h"

namespace perdure::core {
namespace {

class Life {
 public:
  explicit Life(unsigned seed) : random_(seed), script_(MakePolicy(random_)) {
    script_.HelloAll();
    script_.Pass(3);
  }

  void Run(int actions) {
    for (int i = 0; i < actions && !script_.exit_code(); ++i) Act();
    script_.CheckReplay();
  }

  const Script& script() const { return script_; }

 private:
  static Policy MakePolicy(std::mt19937& random) {
    Policy policy = SmallJob();
    policy.max_auto_restart = static_cast<int>(random() % 20);
    policy.max_no_progress_restarts = 1 + static_cast<int>(random() % 5);
    return policy;
  }

  int Below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  int LivingRank() {
    for (int tries = 0; tries < 8; ++tries) {
      const int rank = Below(4);
      if (script_.durable().ends.count(Rank(rank)) == 0) return rank;
    }
    return -1;
  }
  std::string Node() { return std::string(1, static_cast<char>('a' + Below(4))); }

  void Act() {
    const bool running =
        script_.phase() == JobPhase::kRunning || script_.phase() == JobPhase::kJudging;
    const int rank = running ? LivingRank() : -1;
    switch (Below(18)) {
      case 0:
      case 1:
      case 2:
      case 3:
        script_.CompleteStep(++step_);
        script_.Pass(1);
        return;
      case 4:
        if (running) script_.Committed(step_);
        return;
      case 5:
        if (rank >= 0) script_.Killed(rank, 9);
        return;
      case 6:
        if (rank >= 0) script_.Exited(rank, 1, "error", Below(2) == 0 ? 1 : 100);
        return;
      case 7:
        if (rank >= 0) script_.Left(rank, 1, Code::kCommFailed, "all_reduce failed");
        return;
      case 8:
        if (rank >= 0) {
          script_.CommFails(
              rank, Below(2) == 0 ? CommFailure::Class::kPeerDead : CommFailure::Class::kNotJoined,
              {Below(4)}, "a peer is missing");
        }
        return;
      case 9:
        script_.Disconnect(Node());
        return;
      case 10:
        script_.Hello(Node());
        return;
      case 11:
        if (Below(3) == 0) script_.HelloAnew(Node());
        return;
      case 12:
        script_.Pass(Below(30));
        return;
      case 13:
        script_.Sleep(Below(1000));
        return;
      case 14:
        if (Below(3) == 0) {
          script_.RestartSupervisor();
          for (const char* node : {"a", "b", "c"}) {
            if (Below(4) != 0) script_.Hello(node);
          }
        }
        return;
      case 15:
        if (rank >= 0) script_.Mute(rank);
        return;
      case 16:
        if (rank >= 0 && Below(2) == 0) script_.Left(rank, 143, Code::kPreempted);
        return;
      case 17:
        if (Below(20) == 0) script_.Signal(15);
        return;
    }
  }

  std::mt19937 random_;
  Script script_;
  int step_ = 0;
};

TEST(RandomLives, InvariantsHoldAfterEveryEvent) {
  constexpr unsigned kLives = 150;
  constexpr int kActions = 120;
  const unsigned first = std::random_device()();
  int ended = 0;
  for (unsigned i = 0; i < kLives; ++i) {
    const unsigned seed = first + i;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Life life(seed);
    life.Run(kActions);
    ended += life.script().exit_code() ? 1 : 0;
    if (testing::Test::HasFailure()) break;
  }
  RecordProperty("first_seed", std::to_string(first));
  EXPECT_GT(ended, 0) << "some lives must come to an end";
}

}  // namespace
}  // namespace perdure::core
