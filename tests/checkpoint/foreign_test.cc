// Files of a program's own format, written into the checkpoint and verified before they are read.
#include "checkpoint/foreign.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>

#include "base/log.h"
#include "checkpoint/deleter.h"
#include "checkpoint/diff.h"
#include "checkpoint/drill.h"
#include "checkpoint/inspect.h"
#include "storage/faulty_files.h"
#include "storage/posix_files.h"
#include "support.h"
#include "support/temp_dir.h"

namespace perdure {
namespace {

using ::testing::HasSubstr;
using Call = std::function<Status(const std::string&)>;

void Spew(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}
std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

class ForeignTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { Log().set_level(spdlog::level::off); }

  struct Outcome {
    Status status;
    std::vector<std::string> read;  // by rank: what `read` found
    RestoreReport report;           // of rank 0
  };

  std::string root() const { return dir_ / "root"; }
  std::string InCheckpoint(const std::string& path) const {
    return root() + "/step-00000005.g1/" + path;
  }

  // One generation of `world` ranks. Each writes "<rank> <text>" into a file and one below.
  Outcome Run(Files& files, int world, std::int64_t step, const std::string& text,
              WorldChange rule = WorldChange::kError, const Call& instead = nullptr) {
    Outcome outcome;
    outcome.read.resize(static_cast<std::size_t>(world));
    const auto claimed =
        CheckpointEngine::ClaimNext(files, root(), "toy", Generation(1), RealClock());
    outcome.status = claimed.status();
    if (!claimed.ok()) return outcome;
    Board board;
    std::barrier done(world);
    Mutex mutex;
    RunRanks(world, [&](int r) {
      MemoryGroup group(board, Rank(r), world, *claimed);
      CheckpointOptions options = ToyOptions(root());
      options.async_save = false;
      std::unique_ptr<CheckpointEngine> engine;
      const Call write = [&, r](const std::string& directory) -> Status {
        if (instead && r == world - 1) return instead(directory);
        Spew(directory + "/state.bin", std::to_string(r) + " " + text);
        std::filesystem::create_directory(directory + "/more");
        Spew(directory + "/more/empty", "");
        Spew(directory + "/more/large", std::string(5 << 20, static_cast<char>('a' + r)));
        return Ok();
      };
      const Call read = [&, r](const std::string& directory) -> Status {
        outcome.read[static_cast<std::size_t>(r)] = Slurp(directory + "/state.bin");
        return Ok();
      };
      const auto run = [&]() -> Status {
        PERDURE_ASSIGN_OR_RETURN(
            engine, CheckpointEngine::Open(options, group, files, RealClock(), {}, In(30)));
        engine->AddWriter("index", write, read, rule);
        PERDURE_ASSIGN_OR_RETURN(const RestoreReport report, engine->Restore());
        if (r == 0) outcome.report = report;
        return step < 0 ? Ok() : engine->Save(step);
      };
      const Status status = run();
      done.arrive_and_wait();
      board.TakeDown();
      if (engine != nullptr) static_cast<void>(engine->Close(In(30)).ok());
      MutexLock lock(mutex);
      if (outcome.status.ok()) outcome.status = status;
    });
    return outcome;
  }

  std::vector<std::string> NamesInRoot() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(root())) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TempDir dir_;
  PosixFiles files_;
};

TEST_F(ForeignTest, ComesBackToTheRankThatWroteIt) {
  const Outcome saved = Run(files_, 3, 5, "five");
  ASSERT_TRUE(saved.status.ok()) << saved.status.ToString();
  EXPECT_EQ(saved.read, std::vector<std::string>(3));  // a fresh start reads nothing
  EXPECT_EQ(Slurp(InCheckpoint("parts/index/rank-00001-of-00003/state.bin")), "1 five");
  EXPECT_EQ(NamesInRoot(),
            (std::vector<std::string>{"latest", "lineage", "perdure.json", "step-00000005.g1"}));
  const Manifest manifest = *ReadManifest(files_, root(), *FindCheckpoint(files_, root(), "5"));
  ASSERT_EQ(manifest.foreign.at("index").size(), 9u);
  EXPECT_EQ(manifest.foreign.at("index")[0].name, "rank-00000-of-00003/more/empty");
  EXPECT_GT(manifest.TotalBytes(), 3 * (5 << 20));
  EXPECT_EQ(*ParseManifest(FormatManifest(manifest), "m"), manifest);

  const Outcome restored = Run(files_, 3, -1, "");
  ASSERT_TRUE(restored.status.ok()) << restored.status.ToString();
  EXPECT_EQ(restored.read, (std::vector<std::string>{"0 five", "1 five", "2 five"}));
  EXPECT_GT(restored.report.bytes, 5 << 20);
}

TEST_F(ForeignTest, DiffComparesTheFilesToo) {
  ASSERT_TRUE(Run(files_, 2, 5, "five").status.ok());
  ASSERT_TRUE(Run(files_, 2, 6, "six").status.ok());
  ASSERT_TRUE(Run(files_, 2, 7, "ten").status.ok());
  const auto diff = [&](const char* a, const char* b) {
    const auto name = [&](const char* which) { return *FindCheckpoint(files_, root(), which); };
    return DiffCheckpoints(files_, {root(), name(a)}, {root(), name(b)});
  };
  EXPECT_TRUE(diff("6", "6")->differences.empty());
  const auto sizes = diff("5", "6");
  ASSERT_TRUE(sizes.ok()) << sizes.status().ToString();
  ASSERT_EQ(sizes->differences.size(), 2u);
  EXPECT_EQ(sizes->differences[0].kind, "file");
  EXPECT_EQ(sizes->differences[0].name, "parts/index/rank-00000-of-00002/state.bin");
  EXPECT_EQ(sizes->differences[0].what, "6 bytes in A, 5 in B");
  EXPECT_EQ(diff("6", "7")->differences.at(1).what, "bytes");
}

TEST_F(ForeignTest, AnotherWorldFollowsTheRule) {
  ASSERT_TRUE(Run(files_, 2, 5, "five").status.ok());
  const Outcome refused = Run(files_, 3, -1, "");
  EXPECT_EQ(refused.status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.status.message(),
              HasSubstr("files of part index: every rank has its own, 2 ranks saved them and 3 go "
                        "on; start with 2 ranks"));
  const Outcome like_0 = Run(files_, 3, -1, "", WorldChange::kRank0);
  EXPECT_TRUE(like_0.status.ok()) << like_0.status.ToString();
  EXPECT_EQ(like_0.read, std::vector<std::string>(3, "0 five"));
  const Outcome anew = Run(files_, 1, -1, "", WorldChange::kRecompute);
  EXPECT_TRUE(anew.status.ok()) << anew.status.ToString();
  EXPECT_EQ(anew.read, std::vector<std::string>(1));
  EXPECT_EQ(anew.report.saved_world, 2);
}

TEST_F(ForeignTest, AWriterThatFailsFailsTheSaveOfAllAndLeavesThePreviousOne) {
  ASSERT_TRUE(Run(files_, 2, 5, "five").status.ok());
  const std::vector<std::string> before = NamesInRoot();
  const std::vector<std::pair<Call, std::string>> failures = {
      {[](const std::string& directory) -> Status {
         Spew(directory + "/half", "half");
         return Status(Code::kInternal, "no more paper");
       },
       "rank 1: writing part \"index\": no more paper"},
      {[](const std::string&) -> Status { throw std::runtime_error("out of ink"); },
       "rank 1: writing part \"index\": it threw: out of ink"},
      {[](const std::string&) -> Status { throw 7; }, "it threw something that is no std"},
      {[](const std::string& directory) -> Status {
         std::filesystem::create_symlink("/etc/passwd", directory + "/link");
         return Ok();
       },
       "link is neither a file nor a directory"},
      {[](const std::string& directory) -> Status {
         Spew(directory + "/line\nbreak", "");
         return Ok();
       },
       "a name that a manifest cannot hold"}};
  for (const auto& [failure, message] : failures) {
    const Outcome failed = Run(files_, 2, 9, "nine", WorldChange::kError, failure);
    EXPECT_FALSE(failed.status.ok());
    EXPECT_THAT(failed.status.message(), HasSubstr(message));
    const CheckpointName newest = *FindCheckpoint(files_, root(), "");
    EXPECT_EQ(newest.id.step, Step(5));
    EXPECT_TRUE(VerifyCheckpoint(files_, root(), newest).problems.empty());
  }
  const Outcome after = Run(files_, 2, 10, "ten");
  ASSERT_TRUE(after.status.ok()) << after.status.ToString();
  EXPECT_EQ(after.read, (std::vector<std::string>{"0 five", "1 five"}));
}

TEST_F(ForeignTest, EveryFlippedByteIsFoundAndTheFileNamed) {
  ASSERT_TRUE(Run(files_, 2, 5, "five").status.ok());
  const CheckpointName name = *FindCheckpoint(files_, root(), "5");
  EXPECT_TRUE(VerifyCheckpoint(files_, root(), name).problems.empty());
  EXPECT_TRUE(DrillRestore(files_, root(), name).problems.empty());
  const std::string path = InCheckpoint("parts/index/rank-00001-of-00002/state.bin");
  const std::string whole = Slurp(path);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string bad = whole;
    bad[i] = static_cast<char>(bad[i] ^ 4);
    Spew(path, bad);
    const VerifyReport report = VerifyCheckpoint(files_, root(), name);
    ASSERT_EQ(report.problems.size(), 1u);
    EXPECT_THAT(report.problems[0], HasSubstr("rank-00001-of-00002/state.bin: its bytes are not"));
  }
  EXPECT_EQ(DrillRestore(files_, root(), name).problems.size(), 1u);
  const Outcome refused = Run(files_, 2, -1, "");
  EXPECT_THAT(refused.status.message(), HasSubstr("rank-00001-of-00002/state.bin"));
  EXPECT_EQ(refused.read, std::vector<std::string>(2));  // nothing was read by anybody
  Spew(path, whole + "x");
  EXPECT_THAT(Run(files_, 2, -1, "").status.message(), HasSubstr("the manifest says 6"));
  std::filesystem::remove(path);
  EXPECT_THAT(Run(files_, 2, -1, "").status.message(), HasSubstr("the file is missing"));
  Spew(path, whole);
  EXPECT_TRUE(Run(files_, 2, -1, "").status.ok());
}

TEST_F(ForeignTest, AFailedDiskFailsTheSaveAndNothingStays) {
  ASSERT_TRUE(Run(files_, 1, 5, "five").status.ok());
  for (const char* const verb : {"syncfile", "syncdir", "rename", "mkdir"}) {
    SCOPED_TRACE(verb);
    FaultyFiles faulty(files_);
    Fault fault;
    fault.verb = verb;
    fault.path_contains = "parts";
    faulty.Set({fault});
    const Outcome failed = Run(faulty, 1, 9, "nine");
    EXPECT_EQ(failed.status.code(), Code::kUnavailable) << failed.status.ToString();
    EXPECT_EQ(FindCheckpoint(files_, root(), "")->id.step, Step(5));
    for (const std::string& name : NamesInRoot()) {
      EXPECT_NE(name.rfind(".tmp-", 0), 0u) << name << " stays";
    }
  }
  EXPECT_TRUE(Run(files_, 1, 10, "ten").status.ok());
}

TEST_F(ForeignTest, IsRetiredWithTheRest) {
  for (std::int64_t step = 5; step < 9; ++step) {
    ASSERT_TRUE(Run(files_, 1, step, "text").status.ok());
  }
  int committed = 0;
  for (const std::string& name : NamesInRoot()) {
    if (name.rfind("step-", 0) == 0) ++committed;
    if (name.rfind(".trash-", 0) == 0) {
      EXPECT_TRUE(DeleteTrash(files_, root() + "/" + name).ok());
      EXPECT_FALSE(std::filesystem::exists(root() + "/" + name));
    }
  }
  EXPECT_LE(committed, 3);
}

TEST_F(ForeignTest, ProgramAndCheckpointMustHaveTheSameParts) {
  ASSERT_TRUE(Run(files_, 1, 5, "five").status.ok());
  const auto claimed =
      CheckpointEngine::ClaimNext(files_, root(), "toy", Generation(1), RealClock());
  Board board;
  MemoryGroup group(board, Rank(0), 1, *claimed);
  auto engine = CheckpointEngine::Open(ToyOptions(root()), group, files_, RealClock(), {}, In(30));
  ASSERT_TRUE(engine.ok());
  const Call nothing = [](const std::string&) { return Ok(); };
  (*engine)->AddWriter("other", nothing, nothing);
  const std::string message = (*engine)->Restore().status().message();
  EXPECT_THAT(message, HasSubstr("files of part other: in the program, not in the checkpoint"));
  EXPECT_THAT(message, HasSubstr("files of part index: in the checkpoint, not in the program"));
}

TEST_F(ForeignTest, BadPartsAreRefusedByName) {
  for (const std::string name : {"", "a/b", "..", "a.b", "toy"}) {
    Board board;
    const auto claimed =
        CheckpointEngine::ClaimNext(files_, root(), "toy", Generation(1), RealClock());
    MemoryGroup group(board, Rank(0), 1, *claimed);
    auto engine =
        CheckpointEngine::Open(ToyOptions(root()), group, files_, RealClock(), {}, In(30));
    ASSERT_TRUE(engine.ok());
    ToyState toy(0, 1);
    (*engine)->Add("toy", toy);
    const Call nothing = [](const std::string&) { return Ok(); };
    (*engine)->AddWriter(name, nothing, nothing);
    EXPECT_EQ((*engine)->Restore().status().code(), Code::kInvalidArgument) << name;
  }
}

TEST(ForeignManifestTest, NamesThatLeadOutAreDamage) {
  Manifest manifest;
  manifest.root_id = "00112233445566778899aabbccddeeff";
  manifest.id = {Generation(1), Step(1)};
  manifest.world = 2;
  manifest.foreign["p"] = {{"rank-00001-of-00002/a/b", 3, "00112233445566778899aabbccddeeff"}};
  ASSERT_TRUE(ParseManifest(FormatManifest(manifest), "m").ok());
  EXPECT_THAT(FormatManifest(manifest), HasSubstr("\"format_version\": 2"));
  for (const std::string name :
       {"a", "rank-00001-of-00002", "rank-00001-of-00003/a", "rank-00001-of-00002/../a",
        "rank-00001-of-00002//a", "/rank-00001-of-00002/a", "rank-00001-of-00002/a/",
        "rank-00001-of-00002/./a"}) {
    Manifest bad = manifest;
    bad.foreign["p"][0].name = name;
    EXPECT_EQ(ParseManifest(FormatManifest(bad), "m").status().code(), Code::kDataLoss) << name;
  }
  for (const std::string part : {"", ".", "..", "a/b"}) {
    Manifest bad = manifest;
    bad.foreign[part] = {};
    EXPECT_EQ(ParseManifest(FormatManifest(bad), "m").status().code(), Code::kDataLoss) << part;
  }
  manifest.foreign["p"].push_back(manifest.foreign["p"][0]);
  EXPECT_EQ(ParseManifest(FormatManifest(manifest), "m").status().code(), Code::kDataLoss);
}

}  // namespace
}  // namespace perdure
