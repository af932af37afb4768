// CKPT-1: a process that is killed at any step of claim, fork, save and retention leaves the old
// checkpoint or the new one, never something between. A child process runs a generation and is
// killed at its n-th storage step, for every n; the parent then runs the next generation.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/inspect.h"
#include "generation.h"
#include "storage/faulty_files.h"
#include "storage/posix_files.h"
#include "support/temp_dir.h"

namespace perdure {
namespace {

constexpr int kWorld = 2;
constexpr std::int64_t kStepsPerGeneration = 2;

struct CrashCase {
  bool going_on = false;
  bool with_files = false;
};

class CrashTest : public testing::TestWithParam<CrashCase> {
 protected:
  static void SetUpTestSuite() {
    // A kill needs no real disk; memory makes a few hundred generations quick.
    if (std::filesystem::is_directory("/dev/shm")) ::setenv("TMPDIR", "/dev/shm", 0);
  }

  CrashTest() : dir_(std::make_unique<TempDir>()), base_(*dir_ / "base") {
    if (!GetParam().going_on) return;
    // An earlier generation whose checkpoints the killed one goes on from and retires.
    const Ran ran = RunGeneration(posix_, base_, kWorld, 4, Options());
    EXPECT_TRUE(ran.status.ok()) << ran.status.ToString();
  }

  static GenerationOptions Options() {
    GenerationOptions options;
    options.with_files = GetParam().with_files;
    return options;
  }

  // Runs a generation in a child with the fault; false: it came to its end undisturbed.
  bool RunAndKill(const std::string& root, const Fault& fault, std::int64_t* last_reported) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      FaultyFiles faulty(posix_);
      faulty.Set({fault});
      GenerationOptions options = Options();
      options.on_committed = [&](const CheckpointCommit& commit) {
        const char step = static_cast<char>(commit.step.value());
        EXPECT_EQ(::write(ends[1], &step, 1), 1);
      };
      const Ran ran = RunGeneration(faulty, root, kWorld, kStepsPerGeneration, options);
      ::_exit(ran.status.ok() ? 0 : 1);
    }
    ::close(ends[1]);
    char step = 0;
    while (::read(ends[0], &step, 1) == 1) *last_reported = step;
    ::close(ends[0]);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      return false;
    }
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
    return true;
  }

  void KillAtEachStep(const Fault::Kind kind, const std::string& verb) {
    const std::int64_t oldest = GetParam().going_on ? 3 : -1;
    std::int64_t n = 1;
    for (;; ++n) {
      SCOPED_TRACE(testing::Message() << "killed at step " << n << " " << verb);
      const std::string root = *dir_ / ("root" + std::to_string(n));
      if (GetParam().going_on) {
        std::filesystem::copy(base_, root, std::filesystem::copy_options::recursive);
      }
      std::int64_t reported = oldest;
      const Fault fault{.kind = kind, .first_step = n, .verb = verb};
      if (!RunAndKill(root, fault, &reported)) break;

      const Ran next = RunGeneration(posix_, root, kWorld, kStepsPerGeneration, Options());
      ASSERT_TRUE(next.status.ok()) << next.status.ToString();
      EXPECT_TRUE(next.state_right) << "restored " << next.report.checkpoint;
      const std::int64_t restored = next.report.next_step - 1;
      EXPECT_GE(restored, reported) << "what was reported durable is there";
      EXPECT_LE(restored, oldest + kStepsPerGeneration);
      CheckRoot(root);
      std::filesystem::remove_all(root);
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_GT(n, verb.empty() ? 40 : 4) << "the fault was never met";
  }

  // Everything that looks like a checkpoint of the lineage is one, and no attempt is left.
  void CheckRoot(const std::string& root) {
    const auto all = ListForPeople(posix_, root);
    ASSERT_TRUE(all.ok()) << all.status().ToString();
    int good = 0;
    for (const CheckpointSummary& summary : *all) {
      EXPECT_NE(summary.kind, "attempt") << summary.name;
      EXPECT_NE(summary.kind, "foreign") << summary.name;
      if (summary.kind != "committed") continue;
      EXPECT_EQ(summary.problem, "") << summary.name;
      const VerifyReport verified = VerifyCheckpoint(posix_, root, *ParseName(summary.name));
      EXPECT_TRUE(verified.problems.empty()) << verified.problems[0];
      good += summary.on_lineage ? 1 : 0;
    }
    EXPECT_GE(good, GetParam().going_on ? 2 : 1);  // CKPT-5
  }

  PosixFiles posix_;
  std::unique_ptr<TempDir> dir_;
  std::string base_;
};

TEST_P(CrashTest, KilledBeforeEachStep) {
  KillAtEachStep(Fault::Kind::kKillBefore, "");
}

TEST_P(CrashTest, KilledInTheMiddleOfEachWrite) {
  KillAtEachStep(Fault::Kind::kKillMiddle, "write");
}

std::string NameOf(const testing::TestParamInfo<CrashCase>& which) {
  return std::string(which.param.going_on ? "GoingOn" : "FromNothing") +
         (which.param.with_files ? "WithFiles" : "");
}

INSTANTIATE_TEST_SUITE_P(All, CrashTest,
                         testing::Values(CrashCase{false, false}, CrashCase{true, false},
                                         CrashCase{true, true}),
                         &NameOf);

}  // namespace
}  // namespace perdure
