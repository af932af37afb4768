// CKPT-7: every storage step of a save and of retention fails once, in every way that a disk knows,
// and hangs once. The checkpoint before is whole, the failure is told with path and cause, the next
// save works, and nothing is tried again on a file that failed.
#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <system_error>

#include "base/log.h"
#include "checkpoint/inspect.h"
#include "generation.h"
#include "storage/bounded_files.h"
#include "storage/faulty_files.h"
#include "storage/recording_files.h"

namespace perdure {
namespace {

constexpr const char* kFaultyRoot = "/checkpoints";

// A program that saves steps one after another over files that fail when told to.
class Program {
 public:
  Program() : Program(nullptr) {}
  // With `patience` the files are bounded.
  explicit Program(const Duration* patience) {
    Files* files = &below_->faulty;
    if (patience != nullptr) {
      bounded_ = std::make_unique<BoundedFiles>(std::shared_ptr<Files>(below_, &below_->faulty),
                                                *patience);
      files = bounded_.get();
    }
    const auto claimed =
        CheckpointEngine::ClaimNext(*files, kFaultyRoot, "toy", Generation(1), RealClock());
    EXPECT_TRUE(claimed.ok());
    CheckpointOptions options = ToyOptions(kFaultyRoot);
    options.async_save = false;
    options.stop_after = 0;
    CheckpointEvents events;
    events.on_failed = [this](const CheckpointFailure& failure) { failures_.push_back(failure); };
    rank_ = std::make_unique<ToyRank>(board_, 0, 1, *claimed, *files, options, events);
    EXPECT_TRUE(rank_->opened.ok()) << rank_->opened.ToString();
  }
  ~Program() {
    below_->faulty.LetGo();
    board_.TakeDown();
    rank_.reset();
  }

  FaultyFiles& faulty() { return below_->faulty; }
  RecordingFiles& memory() { return below_->memory; }
  const std::vector<CheckpointFailure>& failures() const { return failures_; }

  Status Save(std::int64_t step) {
    rank_->state->Set(step);
    const Status ended = rank_->engine->EndStep(step);  // training goes on
    EXPECT_TRUE(ended.ok()) << ended.ToString();
    return rank_->engine->Save(step);
  }

  // What a machine that starts now would find.
  std::int64_t Restorable() {
    RecordingFiles copy(below_->memory.Current());
    const Ran ran = RunGeneration(copy, kFaultyRoot, 1, 0);
    EXPECT_TRUE(ran.status.ok()) << ran.status.ToString();
    EXPECT_TRUE(ran.state_right);
    return ran.report.next_step - 1;
  }

 private:
  struct Below {
    RecordingFiles memory;
    FaultyFiles faulty{memory};
  };
  std::shared_ptr<Below> below_ = std::make_shared<Below>();
  std::unique_ptr<BoundedFiles> bounded_;
  Board board_;
  std::vector<CheckpointFailure> failures_;
  std::unique_ptr<ToyRank> rank_;
};

// After a step of a file failed, nothing but its removal is done with it.
std::string UsedAfterItFailed(const std::vector<std::string>& history, std::size_t failed) {
  const std::string& step = history[failed];
  const std::string path = step.substr(step.find(' ') + 1);
  for (std::size_t i = failed + 1; i < history.size(); ++i) {
    for (const char* verb : {"write ", "sync ", "close "}) {
      if (history[i] == verb + path) return history[i];
    }
  }
  return "";
}

struct DiskError {
  int error;
  Fault::Kind kind;
};

class FaultTest : public testing::TestWithParam<DiskError> {
 protected:
  static void SetUpTestSuite() { Log().set_level(spdlog::level::off); }
};

TEST_P(FaultTest, AtEveryStepOfSaveAndRetention) {
  Program program;
  std::int64_t step = 0;
  for (; step < 4; ++step) ASSERT_TRUE(program.Save(step).ok());
  const std::string cause = std::generic_category().message(GetParam().error);
  std::size_t told = 0;
  for (std::int64_t n = 1;; ++n, step += 2) {
    const auto before = static_cast<std::size_t>(program.faulty().steps());
    const std::size_t failures = program.failures().size();
    // From the n-th step on, so that the second try fails as well.
    program.faulty().Set({{.kind = GetParam().kind, .first_step = n, .error = GetParam().error}});
    const Status saved = program.Save(step);
    const std::vector<std::string> history = program.faulty().history();
    program.faulty().Set({});
    if (history.size() < before + static_cast<std::size_t>(n)) {
      EXPECT_GT(n, 10) << "the last step of a save was reached";
      break;
    }
    const std::string& failed = history[before + static_cast<std::size_t>(n) - 1];
    SCOPED_TRACE(testing::Message() << "from step " << n << " on: " << failed);
    const bool is_file =
        failed.find("write ") == 0 || failed.find("sync ") == 0 || failed.find("close ") == 0;
    if (is_file) {
      EXPECT_EQ(UsedAfterItFailed(history, before + static_cast<std::size_t>(n) - 1), "");
    }
    if (!saved.ok()) {
      ++told;
      EXPECT_NE(saved.message().find(cause), std::string::npos) << saved.message();
      EXPECT_NE(saved.message().find(kFaultyRoot), std::string::npos) << saved.message();
      ASSERT_EQ(program.failures().size(), failures + 1);
      EXPECT_EQ(program.failures().back().step, Step(step));
      EXPECT_NE(program.failures().back().reason.find(cause), std::string::npos);
    }
    const std::int64_t restorable = program.Restorable();
    EXPECT_TRUE(restorable == step || (!saved.ok() && restorable == step - 1))
        << "step " << restorable << " would come back";
    ASSERT_TRUE(program.Save(step + 1).ok()) << "the next save";
    EXPECT_EQ(program.Restorable(), step + 1);
    if (HasFailure()) return;
  }
  EXPECT_GT(told, 8u);
}

// The same for what happens before the first save: an error with path and cause, or no harm at all.
TEST_P(FaultTest, AtEveryStepOfClaimAndFork) {
  RecordingFiles base;
  ASSERT_TRUE(RunGeneration(base, kFaultyRoot, 1, 3).status.ok());
  const std::string cause = std::generic_category().message(GetParam().error);
  int told = 0;
  for (std::int64_t n = 1;; ++n) {
    RecordingFiles files(base.Current());
    FaultyFiles faulty(files);
    faulty.Set(
        {{.kind = GetParam().kind, .first_step = n, .last_step = n, .error = GetParam().error}});
    const Ran ran = RunGeneration(faulty, kFaultyRoot, 1, 0);
    if (faulty.steps() < n) break;
    SCOPED_TRACE(testing::Message() << n << ": " << faulty.history().back());
    if (!ran.status.ok()) {
      ++told;
      EXPECT_NE(ran.status.message().find(cause), std::string::npos) << ran.status.message();
      EXPECT_NE(ran.status.message().find(kFaultyRoot), std::string::npos) << ran.status.message();
    }
    const Ran next = RunGeneration(files, kFaultyRoot, 1, 1);
    ASSERT_TRUE(next.status.ok()) << next.status.ToString();
    EXPECT_TRUE(next.state_right);
    EXPECT_EQ(next.report.next_step, 3);
  }
  EXPECT_GT(told, 6);
}

std::string NameOf(const testing::TestParamInfo<DiskError>& info) {
  static const std::map<int, std::string> names = {
      {EIO, "Eio"}, {ENOSPC, "Enospc"}, {EDQUOT, "Edquot"}, {ESTALE, "Estale"}, {EINTR, "Eintr"}};
  const bool is_short = info.param.kind == Fault::Kind::kShortWrite;
  return names.at(info.param.error) + (is_short ? "AfterAShortWrite" : "");
}

INSTANTIATE_TEST_SUITE_P(All, FaultTest,
                         testing::Values(DiskError{EIO, Fault::Kind::kError},
                                         DiskError{ENOSPC, Fault::Kind::kError},
                                         DiskError{EDQUOT, Fault::Kind::kError},
                                         DiskError{ESTALE, Fault::Kind::kError},
                                         DiskError{EINTR, Fault::Kind::kError},
                                         DiskError{ENOSPC, Fault::Kind::kShortWrite},
                                         DiskError{EIO, Fault::Kind::kShortWrite}),
                         &NameOf);

TEST(HungFileSystemTest, EveryStepIsGivenUpAndTrainingGoesOn) {
  Log().set_level(spdlog::level::off);
  const Duration patience = std::chrono::milliseconds(40);
  Program program(&patience);
  std::int64_t step = 0;
  for (; step < 4; ++step) ASSERT_TRUE(program.Save(step).ok());
  int told = 0;
  for (std::int64_t n = 1;; ++n, step += 2) {
    const auto before = program.faulty().steps();
    program.faulty().Set({{.kind = Fault::Kind::kHang, .first_step = n, .last_step = n}});
    const Status saved = program.Save(step);
    const std::vector<std::string> history = program.faulty().history();
    if (program.faulty().steps() < before + n) break;
    SCOPED_TRACE(history[static_cast<std::size_t>(before + n) - 1]);
    if (!saved.ok()) {
      ++told;
      EXPECT_EQ(saved.code(), Code::kDeadlineExceeded) << saved.ToString();
      EXPECT_NE(saved.message().find("has not answered"), std::string::npos) << saved.message();
      EXPECT_NE(saved.message().find(kFaultyRoot), std::string::npos) << saved.message();
    }
    EXPECT_GE(program.Restorable(), step - 1);
    program.faulty().LetGo();  // the server is back
    program.faulty().Set({});
    ASSERT_TRUE(program.Save(step + 1).ok()) << "the next save";
    EXPECT_EQ(program.Restorable(), step + 1);
    program.faulty().HangAgain();
  }
  EXPECT_GT(told, 8);
}

TEST(FullDiskTest, SaysHowMuchIsNeededAndWhere) {
  Log().set_level(spdlog::level::off);
  Program program;
  ASSERT_TRUE(program.Save(0).ok());
  program.faulty().Set({{.error = ENOSPC, .verb = "write", .path_contains = ".safetensors"}});
  const Status saved = program.Save(1);
  EXPECT_EQ(saved.code(), Code::kResourceExhausted);
  EXPECT_NE(saved.message().find("No space left on device"), std::string::npos);
  EXPECT_NE(saved.message().find("this rank's part of the checkpoint needs "), std::string::npos)
      << saved.message();
  EXPECT_NE(saved.message().find("bytes in /checkpoints/.tmp-step-00000001.g1-"), std::string::npos)
      << saved.message();
}

}  // namespace
}  // namespace perdure
