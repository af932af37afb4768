// CKPT-4, CKPT-5 and CKPT-9 when generations meet on one root: interleavings of the storage steps
// of two actors. One of them is often an old rank 0 that was cut off in the middle of a save or of
// retention and wakes up while, or after, its successor claims, restores and saves.
//
// Every schedule in which the turn is taken away once is tried; of those with two,
// PERDURE_TEST_SCHEDULES chosen by chance, or all of them when it is 0; and random ones with three
// to five.
//
// Method: Musuvathi and Qadeer, "Iterative Context Bounding for Systematic Testing of Multithreaded
// Programs", PLDI 2007: few switches, placed everywhere, find what there is to find.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>
#include <random>
#include <set>

#include "base/log.h"
#include "base/posix.h"
#include "checkpoint/catalog.h"
#include "checkpoint/claim.h"
#include "checkpoint/inspect.h"
#include "generation.h"
#include "storage/file_store.h"
#include "storage/recording_files.h"
#include "support/turn_files.h"

namespace perdure {
namespace {

constexpr const char* kRoot = "/checkpoints";
constexpr int kKeep = 2;

// What one generation saw and was told.
struct Told {
  Generation generation;
  Status status;                         // the first that was not OK
  std::optional<std::int64_t> restored;  // step; -1: fresh
  std::string checkpoint;
  bool state_right = true;
  std::vector<CheckpointId> durable;  // was told so
};

// One rank, from claim to the end. May be taken in parts: an old generation has begun long before
// the race.
class Runner {
 public:
  Runner(Files& files, CheckpointOptions options) : files_(files), options_(std::move(options)) {
    options_.async_save = false;
  }
  ~Runner() { Finish(); }

  void Begin() {
    const Result<Generation> claimed = CheckpointEngine::ClaimNext(
        files_, options_.root, options_.job, Generation(1), RealClock());
    told_.status = claimed.status();
    if (!claimed.ok()) return;
    told_.generation = *claimed;
    rank_ = std::make_unique<ToyRank>(board_, 0, 1, *claimed, files_, options_);
    told_.status = rank_->opened;
    if (!told_.status.ok()) return;
    next_ = rank_->report.next_step;
    told_.restored = next_ - 1;
    told_.checkpoint = rank_->report.checkpoint;
    told_.state_right = rank_->report.fresh || rank_->state->Is(next_ - 1);
  }

  void Save(int steps) {
    for (int i = 0; i < steps && told_.status.ok(); ++i, ++next_) {
      rank_->state->Set(next_);
      told_.status = rank_->engine->Save(next_);
      if (told_.status.ok()) told_.durable.push_back({told_.generation, Step(next_)});
    }
  }

  void Finish() {
    board_.TakeDown();
    if (rank_ != nullptr && rank_->engine != nullptr) {
      static_cast<void>(rank_->engine->Close(In(10)).ok());
    }
    rank_.reset();
  }

  const Told& told() const { return told_; }

 private:
  Files& files_;
  CheckpointOptions options_;
  Board board_;
  std::unique_ptr<ToyRank> rank_;
  std::int64_t next_ = 0;
  Told told_;
};

// A disk after one generation that saved the steps 0 to 3: 2 and 3 are kept, 1 lies in the trash.
MemoryDisk OldDisk() {
  RecordingFiles files;
  Runner runner(files, ToyOptions(kRoot));
  runner.Begin();
  runner.Save(4);
  EXPECT_TRUE(runner.told().status.ok()) << runner.told().status.ToString();
  runner.Finish();
  return files.Current();
}

struct Scenario {
  MemoryDisk disk;
  // Actor 0 has begun (claimed, restored, saved `saved_before` steps) before the race; nothing:
  // both begin in it.
  std::optional<int> saved_before;
  int saves[2] = {1, 1};
  CheckpointOptions options[2] = {ToyOptions(kRoot), ToyOptions(kRoot)};
  // Checkpoints whose shards are lost just before the race.
  std::vector<std::string> damaged;
  // Actor 1 was told to leave what is newer: the commits of actor 0 may be off the new lineage.
  bool rolls_back = false;
  // Actor 1 may find nothing that it could go on from.
  bool may_find_nothing = false;
  int good_at_end = kKeep;  // at least, on the lineage
};

struct RaceRun {
  std::size_t steps = 0;
  std::string problem;
};

std::string GoOn(Files& files, const Told (&told)[2], const Scenario& scenario) {
  FileStore store(files, kRoot);
  const Result<std::vector<Fork>> forks = ReadForks(store);
  if (!forks.ok()) return forks.status().ToString();
  std::set<Generation> numbers;
  for (const Told& one : told) {
    if (!one.state_right) return "restored other bytes than " + one.checkpoint;
    if (one.generation != Generation(0) && !numbers.insert(one.generation).second) {
      return fmt::format("generation {} was taken twice", one.generation.value());
    }
    // A loser is told that it is fenced, or how it failed to begin; it never just works on.
    if (scenario.may_find_nothing && one.status.code() == Code::kFailedPrecondition) return "";
    if (!one.status.ok() && one.status.code() != Code::kFenced) return one.status.ToString();
  }
  if (told[0].status.code() == Code::kFenced && told[1].status.code() == Code::kFenced) {
    return "both were fenced: nobody trains";
  }
  const std::optional<Generation> head = HeadOf(*forks);
  if (!head.has_value()) return "no fork was written";
  const Result<Lineage> lineage = LineageOf(*head, *forks);
  if (!lineage.ok()) return lineage.status().ToString();
  // What was told to be durable is on the lineage for good (SUP-1, CKPT-4) …
  for (const Told& one : told) {
    for (const CheckpointId& id : one.durable) {
      if (!Contains(*lineage, id) && !(scenario.rolls_back && &one == &told[0])) {
        return fmt::format("{} was told to be durable and is off the lineage", CommittedName(id));
      }
    }
  }
  // … and where the head went on is still there (CKPT-5, CKPT-9).
  for (const Fork& fork : *forks) {
    if (fork.generation != *head || !fork.parent.has_value()) continue;
    std::vector<std::string> problems;
    for (const NameKind kind : {NameKind::kTrash, NameKind::kCommitted}) {
      problems = VerifyCheckpoint(files, kRoot, {kind, *fork.parent, ""}).problems;
      if (problems.empty()) break;
    }
    if (!problems.empty()) {
      return fmt::format("generation {} went on from {}, which is gone: {}", head->value(),
                         CommittedName(*fork.parent), problems[0]);
    }
  }
  int good = 0;
  const Result<std::vector<CheckpointName>> names = ListCheckpoints(files, kRoot);
  if (!names.ok()) return names.status().ToString();
  for (const CheckpointName& name : *names) {
    if (name.kind != NameKind::kCommitted && name.kind != NameKind::kTrash) continue;
    if (!Contains(*lineage, name.id)) continue;
    good += VerifyCheckpoint(files, kRoot, name).problems.empty() ? 1 : 0;
  }
  if (good < scenario.good_at_end) {
    return fmt::format("{} good checkpoints are left of the lineage", good);
  }
  Runner next(files, ToyOptions(kRoot));
  next.Begin();
  next.Save(1);
  if (!next.told().status.ok()) return next.told().status.ToString();
  if (!next.told().state_right) return "the next generation has other bytes";
  std::int64_t newest = -1;
  for (const Told& one : told) {
    for (const CheckpointId& id : one.durable) {
      if (Contains(*lineage, id)) newest = std::max(newest, id.step.value());
    }
  }
  if (next.told().restored.value_or(-1) < newest) {
    return fmt::format("step {} was durable, the next generation has {}", newest,
                       next.told().restored.value_or(-1));
  }
  return "";
}

RaceRun Race(const Scenario& scenario, int first, std::vector<Switch> switches) {
  RecordingFiles files(scenario.disk);
  Turns turns(2, first, std::move(switches));
  TurnFiles views[2] = {{files, turns, 0}, {files, turns, 1}};
  std::unique_ptr<Runner> runners[2];
  for (std::size_t i = 0; i < 2; ++i) {
    runners[i] = std::make_unique<Runner>(views[i], scenario.options[i]);
  }
  if (scenario.saved_before.has_value()) {
    runners[0]->Begin();
    runners[0]->Save(*scenario.saved_before);
  }
  for (const std::string& name : scenario.damaged) {
    const std::string shard = JoinPath(kRoot, name + "/rank-00000-of-00001.safetensors");
    EXPECT_TRUE(files.Remove(shard).ok()) << name;
  }
  turns.Begin();
  RunRanks(2, [&](int actor) {
    const auto i = static_cast<std::size_t>(actor);
    turns.Start(actor);
    if (actor != 0 || !scenario.saved_before.has_value()) runners[i]->Begin();
    runners[i]->Save(scenario.saves[i]);
    runners[i]->Finish();
    turns.Finish(actor);
  });
  RaceRun run;
  run.steps = turns.steps();
  const Told told[2] = {runners[0]->told(), runners[1]->told()};
  run.problem = GoOn(files, told, scenario);
  return run;
}

std::string Describe(int first, const std::vector<Switch>& switches) {
  std::string text = fmt::format("actor {} first", first);
  for (const Switch& one : switches) text += fmt::format(", actor {} at {}", one.actor, one.at);
  return text;
}

std::uint64_t Seed() {
  const auto given = GetEnvInt("PERDURE_TEST_SEED");
  const std::uint64_t seed =
      given.ok() && given->has_value() ? static_cast<std::uint64_t>(**given) : RandomU64() >> 1;
  std::printf("PERDURE_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

std::string RaceEveryWay(const Scenario& scenario) {
  const auto wanted = GetEnvInt("PERDURE_TEST_SCHEDULES");
  const auto bound = static_cast<std::size_t>(
      wanted.ok() && wanted->has_value() ? std::max<std::int64_t>(**wanted, 0) : 80);
  std::mt19937_64 random(Seed());
  std::size_t schedules = 0;
  std::size_t longest = 0;
  std::string problem;
  const auto try_one = [&](int first, const std::vector<Switch>& switches) {
    if (!problem.empty()) return;
    const RaceRun run = Race(scenario, first, switches);
    ++schedules;
    longest = std::max(longest, run.steps);
    if (run.problem.empty()) return;
    problem = fmt::format("{}: {}", Describe(first, switches), run.problem);
  };
  for (int first = 0; first < 2; ++first) {
    try_one(first, {});
    for (std::size_t at = 1; at <= longest; ++at) try_one(first, {{at, 1 - first}});
  }
  // The other one works for a while, then the first wakes up.
  struct Two {
    int first;
    std::size_t a, b;
  };
  std::vector<Two> pairs;
  for (std::size_t a = 1; a <= longest; ++a) {
    for (std::size_t b = a + 1; b <= longest; ++b) {
      pairs.push_back({0, a, b});
      pairs.push_back({1, a, b});
    }
  }
  std::shuffle(pairs.begin(), pairs.end(), random);
  if (bound > 0 && pairs.size() > bound) pairs.resize(bound);
  for (const Two& two : pairs) {
    try_one(two.first, {{two.a, 1 - two.first}, {two.b, two.first}});
  }
  for (std::size_t i = 0; i < std::max<std::size_t>(bound, 200) / 3; ++i) {
    std::set<std::size_t> places;
    for (std::size_t n = 3 + random() % 3; places.size() < n;) {
      places.insert(1 + random() % longest);
    }
    const int first = static_cast<int>(random() % 2);
    std::vector<Switch> switches;
    int actor = first;
    for (const std::size_t place : places) switches.push_back({place, actor = 1 - actor});
    try_one(first, switches);
  }
  std::printf("%zu schedules of up to %zu steps\n", schedules, longest);
  return problem;
}

class RaceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { Log().set_level(spdlog::level::off); }
};

TEST_F(RaceTest, TwoGenerationsBeginAtOnceOnAnEmptyRoot) {
  Scenario scenario;
  scenario.good_at_end = 1;  // the loser may have saved nothing
  EXPECT_EQ(RaceEveryWay(scenario), "");
}

TEST_F(RaceTest, TwoGenerationsBeginAtOnceAndGoOn) {
  Scenario scenario;
  scenario.disk = OldDisk();
  EXPECT_EQ(RaceEveryWay(scenario), "");
}

TEST_F(RaceTest, ACutOffRank0WakesInItsSaveOrRetention) {
  Scenario scenario;
  scenario.saved_before = 3;
  scenario.saves[1] = 2;
  EXPECT_EQ(RaceEveryWay(scenario), "");
}

// What is newer is damaged or was found to crash the program: the successor falls back to what lies
// in the trash, just when the old one deletes it.
TEST_F(RaceTest, ACutOffRank0DeletesWhatItsSuccessorFallsBackTo) {
  Scenario scenario;
  scenario.saved_before = 4;
  scenario.damaged = {"step-00000002.g1", "step-00000003.g1"};
  scenario.options[1].restore.avoid = {"step-00000004.g1"};
  // When it is too late, nothing is left to go on from: told, and nothing else.
  scenario.may_find_nothing = true;
  scenario.rolls_back = true;
  scenario.good_at_end = 1;
  EXPECT_EQ(RaceEveryWay(scenario), "");
}

TEST_F(RaceTest, AnOlderForkIsChosenOnPurposeWhileTheOldOneStillSaves) {
  Scenario scenario;
  scenario.saved_before = 3;
  scenario.options[1].restore.avoid = {"step-00000002.g1", "step-00000003.g1"};
  scenario.rolls_back = true;
  EXPECT_EQ(RaceEveryWay(scenario), "");
}

}  // namespace
}  // namespace perdure
