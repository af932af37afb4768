// CKPT-1 and CKPT-2 under power loss, in memory: a generation runs over files that record every
// step; after each step, every disk (or many) that a cut could leave is taken, checked, and gone on
// from. What was reported durable is there, bit by bit; nothing half is offered.
//
// And the test can fail: with any one sync of the protocol left out, some disk breaks a promise.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/posix.h"
#include "checkpoint/catalog.h"
#include "checkpoint/claim.h"
#include "checkpoint/inspect.h"
#include "generation.h"
#include "storage/faulty_files.h"
#include "storage/file_store.h"
#include "storage/recording_files.h"

namespace perdure {
namespace {

constexpr const char* kRoot = "/data/checkpoints";

// The number that all chance of this test comes from.
std::uint64_t Seed() {
  static const std::uint64_t seed = [] {
    const auto given = GetEnvInt("PERDURE_TEST_SEED");
    const std::uint64_t chosen =
        given.ok() && given->has_value() ? static_cast<std::uint64_t>(**given) : RandomU64() >> 1;
    std::printf("PERDURE_TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    return chosen;
  }();
  return seed;
}

std::int64_t EnvOr(const char* name, std::int64_t otherwise) {
  const auto given = GetEnvInt(name);
  return given.ok() && given->has_value() ? **given : otherwise;
}

// What the program was told, and after which storage step.
struct Promise {
  std::int64_t after = 0;
  Generation claimed;      // this number is taken
  std::int64_t step = -1;  // this step is durable
};

class Recording {
 public:
  Recording(MemoryDisk disk, bool with_files)
      : files_(std::move(disk)), faulty_(files_), with_files_(with_files) {}

  RecordingFiles& files() { return files_; }
  bool with_files() const { return with_files_; }
  const std::vector<Promise>& promises() const { return promises_; }

  Ran Run(int world, std::int64_t steps, std::vector<Fault> faults = {}) {
    faulty_.Set(std::move(faults));
    GenerationOptions options;
    options.with_files = with_files_;
    options.on_claimed = [&](Generation generation) {
      promises_.push_back({files_.steps(), generation, -1});
    };
    options.on_committed = [&](const CheckpointCommit& commit) {
      promises_.push_back({files_.steps(), Generation(0), commit.step.value()});
    };
    return RunGeneration(faulty_, kRoot, world, steps, options);
  }
  std::vector<std::string> history() const { return faulty_.history(); }

 private:
  RecordingFiles files_;
  FaultyFiles faulty_;
  const bool with_files_;
  std::vector<Promise> promises_;
};

struct Expected {
  Generation claimed;
  std::int64_t at_least = -1;
  std::int64_t at_most = -1;
  int world = 1;
  bool with_files = false;
};

// Everything that has a name of a checkpoint, or a manifest that is whole, is whole (CKPT-2).
std::string CheckWhole(Files& files) {
  const auto names = ListCheckpoints(files, kRoot);
  if (!names.ok()) return names.status().code() == Code::kNotFound ? "" : names.status().message();
  FileStore store(files, kRoot);
  const auto root = ReadRootFile(store);
  for (const CheckpointName& name : *names) {
    if (name.kind == NameKind::kTrash || name.kind == NameKind::kTrashedAttempt) continue;
    if (!root.ok()) return "a checkpoint without the root's file: " + root.status().message();
    if (name.kind == NameKind::kAttempt && !LoadManifest(files, kRoot, name, root->root_id).ok()) {
      continue;
    }
    const VerifyReport report = VerifyCheckpoint(files, kRoot, name);
    if (!report.problems.empty()) return report.problems[0];
  }
  return "";
}

// What is wrong with a disk; empty: every promise is kept, and training goes on from it.
std::string Judge(const MemoryDisk& disk, const Expected& expected) {
  RecordingFiles files(disk);
  std::string problem = CheckWhole(files);
  if (!problem.empty()) return problem;
  FileStore store(files, kRoot);
  const auto highest = HighestGeneration(store);
  if (!highest.ok()) return highest.status().message();
  if (*highest < expected.claimed) return "a generation's number would be given twice";
  GenerationOptions options;
  options.with_files = expected.with_files;
  const Ran next = RunGeneration(files, kRoot, expected.world, 1, options);
  if (!next.status.ok()) return next.status.ToString();
  if (!next.state_right) return "the state is not that of " + next.report.checkpoint;
  const std::int64_t restored = next.report.next_step - 1;
  if (restored < expected.at_least) {
    return fmt::format("step {} was reported durable, {} came back", expected.at_least, restored);
  }
  if (restored > expected.at_most) return fmt::format("step {} came back", restored);
  return CheckWhole(files);
}

struct Search {
  std::int64_t disks = 0;
  std::string problem;  // the first
};

Search CutEverywhere(Recording& recording, std::int64_t oldest, std::int64_t newest, int world,
                     std::size_t disks_per_step) {
  Search search;
  std::set<std::string> seen;
  const std::vector<std::string> steps = recording.files().history();
  for (std::size_t n = 0; n <= steps.size() && search.problem.empty(); ++n) {
    Expected expected{Generation(0), oldest, newest, world, recording.with_files()};
    for (const Promise& promise : recording.promises()) {
      if (promise.after > static_cast<std::int64_t>(n)) continue;
      expected.at_least = std::max(expected.at_least, promise.step);
      expected.claimed = std::max(expected.claimed, promise.claimed);
    }
    recording.files().ForEachDisk(
        static_cast<std::int64_t>(n), disks_per_step, Seed() + n,
        [&](const MemoryDisk& disk, const std::string& lost) {
          if (!search.problem.empty()) return;
          const std::string key =
              fmt::format("{} {}\n{}", expected.at_least, expected.claimed.value(), disk.Image());
          if (!seen.insert(key).second) return;
          ++search.disks;
          const std::string problem = Judge(disk, expected);
          if (problem.empty()) return;
          search.problem = fmt::format("cut after step {} ({}), lost: {}: {}", n,
                                       n == 0 ? "the start" : steps[n - 1], lost, problem);
        });
  }
  return search;
}

struct PowerCutCase {
  bool going_on = false;
  bool with_files = false;  // the ranks also write files of their own format
};

// Nothing, or a root with checkpoints of a generation that ended well.
MemoryDisk StartingDisk(const PowerCutCase& which, int world) {
  if (!which.going_on) return {};
  RecordingFiles files;
  GenerationOptions options;
  options.with_files = which.with_files;
  const Ran ran = RunGeneration(files, kRoot, world, 4, options);
  EXPECT_TRUE(ran.status.ok()) << ran.status.ToString();
  return files.Current();
}

class PowerCutTest : public testing::TestWithParam<PowerCutCase> {
 protected:
  static constexpr std::int64_t kSaves = 2;
  // Thousands of generations run; each would say what it restored.
  static void SetUpTestSuite() { Log().set_level(spdlog::level::off); }
  std::int64_t oldest() const { return GetParam().going_on ? 3 : -1; }
};

TEST_P(PowerCutTest, OldOrNewNeverBetween) {
  constexpr int kWorld = 2;
  Recording recording(StartingDisk(GetParam(), kWorld), GetParam().with_files);
  const Ran ran = recording.Run(kWorld, kSaves);
  ASSERT_TRUE(ran.status.ok()) << ran.status.ToString();
  ASSERT_EQ(recording.promises().size(), 1u + kSaves);
  // Programs' own files double the steps and square the disks.
  const auto disks = static_cast<std::size_t>(
      EnvOr("PERDURE_TEST_DISKS_PER_STEP", GetParam().with_files ? 64 : 256));
  const Search search = CutEverywhere(recording, oldest(), oldest() + kSaves, kWorld, disks);
  EXPECT_EQ(search.problem, "");
  EXPECT_GT(search.disks, 60);
  std::printf("%lld steps, %lld different disks\n",
              static_cast<long long>(recording.files().steps()),
              static_cast<long long>(search.disks));
}

// The generation that goes on from a cut is cut itself.
TEST_P(PowerCutTest, ACutWhileRecoveringFromACut) {
  Recording first(StartingDisk(GetParam(), 1), GetParam().with_files);
  ASSERT_TRUE(first.Run(1, kSaves).status.ok());
  std::mt19937_64 random(Seed());
  const std::int64_t rounds = EnvOr("PERDURE_TEST_SECOND_CUTS", GetParam().with_files ? 3 : 8);
  for (std::int64_t round = 0; round < rounds; ++round) {
    const auto cut =
        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(first.files().steps() + 1));
    std::vector<MemoryDisk> disks;
    first.files().ForEachDisk(cut, 64, random(), [&](const MemoryDisk& disk, const std::string&) {
      disks.push_back(disk);
    });
    Recording second(disks[random() % disks.size()], GetParam().with_files);
    const Ran ran = second.Run(1, 1);
    ASSERT_TRUE(ran.status.ok()) << "cut after step " << cut << ": " << ran.status.ToString();
    const std::int64_t restored = ran.report.next_step - 1;
    const Search search = CutEverywhere(second, restored, restored + 1, 1, 64);
    EXPECT_EQ(search.problem, "") << "first cut after step " << cut;
  }
}

// Syncs whose loss alone no promise depends on, each because of another one.
bool CoveredByAnother(const std::string& before, const std::string& step) {
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  // A claim speaks by its name, its text is for people; the hint is believed by nobody.
  if (has(step, ".claim-") || has(step, ".tmp-latest")) return true;
  // Every change of ROOT's names is covered by the sync after the next commit's rename at the
  // latest; that one is covered by nothing.
  const bool commit = has(before, "rename ") && has(before, "/.tmp-step-") && !has(before, "trash");
  return step == fmt::format("syncdir {}", kRoot) && !commit;
}

// Each sync of a generation in turn does nothing and reports success.
TEST_P(PowerCutTest, EverySyncThatIsLeftOutIsFoundOut) {
  const MemoryDisk start = StartingDisk(GetParam(), 1);
  // The same run every time: one rank makes its steps in one order.
  Recording clean(start, GetParam().with_files);
  ASSERT_TRUE(clean.Run(1, kSaves).status.ok());
  int found = 0;
  for (const std::string verb : {"sync", "syncdir", "syncfile"}) {
    std::int64_t n = 0;
    std::string before;
    for (const std::string& step : clean.history()) {
      const std::string previous = std::exchange(before, step);
      if (step.substr(0, step.find(' ')) != verb) continue;
      ++n;
      // The others are the same with and without files.
      if (GetParam().with_files && step.find("/parts") == std::string::npos) continue;
      Recording recording(start, GetParam().with_files);
      const Fault swallow{
          .kind = Fault::Kind::kSwallow, .first_step = n, .last_step = n, .verb = verb};
      ASSERT_TRUE(recording.Run(1, kSaves, {swallow}).status.ok());
      const Search search = CutEverywhere(recording, oldest(), oldest() + kSaves, 1, 64);
      found += search.problem.empty() ? 0 : 1;
      EXPECT_TRUE(!search.problem.empty() || CoveredByAnother(previous, step))
          << "without \"" << step << "\" after \"" << previous << "\" nothing was lost";
    }
  }
  EXPECT_GE(found, GetParam().with_files ? 8 : 12);
}

std::string NameOf(const testing::TestParamInfo<PowerCutCase>& which) {
  return std::string(which.param.going_on ? "GoingOn" : "FromNothing") +
         (which.param.with_files ? "WithFiles" : "");
}

INSTANTIATE_TEST_SUITE_P(All, PowerCutTest,
                         testing::Values(PowerCutCase{false, false}, PowerCutCase{true, false},
                                         PowerCutCase{true, true}),
                         &NameOf);

}  // namespace
}  // namespace perdure
