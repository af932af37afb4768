// `perdure checkpoint …` as a person types it, on a root that two generations have written; and the
// pure parts of those verbs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/toy_root.h"
#include "cli/checkpoint_verbs.h"
#include "cli/progress.h"
#include "support/child.h"
#include "support/temp_dir.h"

namespace perdure {
namespace {

using testing::HasSubstr;
using testing::Not;

// ---------------------------------------------------------------- pure parts

TEST(ParseSize, NumbersWithAndWithoutUnits) {
  const std::pair<const char*, std::int64_t> good[] = {{"4096", 4096},
                                                       {"1B", 1},
                                                       {"3KB", 3000},
                                                       {"3KiB", 3072},
                                                       {"5GB", 5'000'000'000},
                                                       {"512MiB", std::int64_t{512} << 20},
                                                       {"2GiB", std::int64_t{2} << 30},
                                                       {"7MB", 7'000'000}};
  for (const auto& [text, bytes] : good) {
    const auto size = cli::ParseSize(text);
    ASSERT_TRUE(size.ok()) << text;
    EXPECT_EQ(*size, bytes) << text;
  }
  for (const char* const text : {"", "0", "-5GB", "5 GB", "5XB", "GB", "5.5GB", "9999999999GiB",
                                 "99999999999999999999", "5GBs"}) {
    const Status status = cli::ParseSize(text).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr("5GB"));
  }
}

TEST(ProgressBarLine, FitsAndSaysHowFar) {
  const std::int64_t gib = std::int64_t{1} << 30;
  EXPECT_EQ(cli::ProgressBarLine("verify", gib / 2, gib, 60),
            "verify  [==========          ]   50 %  512.0 MiB of 1.0 GiB");
  for (const int columns : {0, 1, 10, 30, 40, 80, 200}) {
    for (const std::int64_t done : {std::int64_t{-1}, std::int64_t{0}, gib / 3, gib, 2 * gib}) {
      const std::string line = cli::ProgressBarLine("restore step-00000200.g3", done, gib, columns);
      EXPECT_LE(line.size(), static_cast<std::size_t>(columns)) << line;
      EXPECT_EQ(line.find('\n'), std::string::npos);
    }
  }
  EXPECT_THAT(cli::ProgressBarLine("verify", 2 * gib, gib, 80), HasSubstr("100 %"));
  EXPECT_THAT(cli::ProgressBarLine("verify", 0, 0, 80), HasSubstr("0 %  0 B of 0 B"));
}

// ---------------------------------------------------------------- the program

class CheckpointVerbs : public testing::Test {
 protected:
  struct Said {
    int code = -1;
    std::string text;
  };

  CheckpointVerbs() { MakeToyRoot(files_, root_, 9); }

  Said Say(std::vector<std::string> words, bool with_directory = true) {
    words.insert(words.begin(), {PERDURE_PROGRAM, "checkpoint"});
    if (with_directory) words.insert(words.end(), {"--directory", root_});
    Child child(words, {}, dir_ / ("said-" + std::to_string(said_++)));
    const std::optional<int> code = child.Wait(In(60));
    return {code.value_or(-1), child.Output()};
  }
  // With --json, which must be all that is said.
  nlohmann::json Facts(std::vector<std::string> words, int code = 0) {
    words.push_back("--json");
    const Said said = Say(words);
    EXPECT_EQ(said.code, code) << said.text;
    nlohmann::json facts = nlohmann::json::parse(said.text, nullptr, false);
    EXPECT_FALSE(facts.is_discarded()) << said.text;
    return facts;
  }
  bool Exists(const std::string& path) { return std::filesystem::exists(path); }

  TempDir dir_;
  PosixFiles files_;
  const std::string root_ = dir_ / "checkpoints";
  int said_ = 0;
};

TEST_F(CheckpointVerbs, LookAtWhatIsThere) {
  const Said list = Say({"ls"});
  EXPECT_EQ(list.code, 0);
  EXPECT_THAT(list.text, HasSubstr("step-00000005.g2"));
  EXPECT_EQ(Facts({"ls"}).size(), 5u);
  EXPECT_EQ(Facts({"ls"})[0].at("step"), 5);
  EXPECT_EQ(Facts({"ls"})[0].at("pinned"), false);
  EXPECT_THAT(Say({"show"}).text, HasSubstr("toy.weight"));
  EXPECT_TRUE(Facts({"show", "4"}).is_object());
  EXPECT_THAT(Say({"verify"}).text, HasSubstr("step-00000005.g2: ok"));
  EXPECT_EQ(Facts({"verify", "--all"}).size(), 5u);
}

TEST_F(CheckpointVerbs, BadWordsGetOneLineThatHelps) {
  for (const std::string verb : {"show", "verify", "pin"}) {
    const Said unknown = Say({verb, "77"});
    EXPECT_EQ(unknown.code, 2) << verb;
    EXPECT_THAT(unknown.text, HasSubstr("77")) << verb;
    EXPECT_THAT(unknown.text, HasSubstr("step-00000005.g2")) << verb;
    EXPECT_EQ(std::count(unknown.text.begin(), unknown.text.end(), '\n'), 1) << unknown.text;
  }
  EXPECT_EQ(Say({"diff", "4", "77"}).code, 2);
  EXPECT_EQ(Say({"export", "77", dir_ / "x.safetensors"}).code, 2);
  EXPECT_EQ(Say({"prune", "--keep-last-n", "1"}).code, 2);
  EXPECT_THAT(Say({"prune", "--keep-last-n", "1"}).text, HasSubstr("nothing to fall back to"));
  EXPECT_EQ(Say({"export", "5", dir_ / "x", "--max-shard-size", "large"}).code, 2);
  EXPECT_EQ(Say({"frobnicate"}, false).code, 2);
  const Said nowhere = Say({"ls", "--directory", dir_ / "nowhere"}, false);
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_THAT(nowhere.text, HasSubstr("is not a checkpoint directory"));
}

TEST_F(CheckpointVerbs, Diff) {
  const Said same = Say({"diff", "5", "step-00000005.g2"});
  EXPECT_EQ(same.code, 0);
  EXPECT_THAT(same.text, HasSubstr("8 the same, 0 different"));
  const Said other = Say({"diff", "4", "5"});
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.text, HasSubstr("30 of 30 elements differ"));
  EXPECT_EQ(Facts({"diff", "4", "5"}, 1).at("differences").size(), 8u);
  EXPECT_EQ(Facts({"diff", "5", "5", "--other-directory", root_}).at("same"), 8);
}

TEST_F(CheckpointVerbs, Export) {
  const std::string one = dir_ / "one.safetensors";
  const Said exported = Say({"export", "5", one, "--part", "toy"});
  EXPECT_EQ(exported.code, 0) << exported.text;
  EXPECT_THAT(exported.text, HasSubstr("5 tensors of step-00000005.g2"));
  const Said again = Say({"export", "5", one, "--part", "toy"});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.text, HasSubstr("exists"));
  const nlohmann::json several =
      Facts({"export", "5", dir_ / "several", "--all-parts", "--max-shard-size", "100B"});
  EXPECT_EQ(several.at("path"), dir_ / "several/model.safetensors.index.json");
  EXPECT_GT(several.at("files").size(), 1u);
  for (const std::string file : several.at("files")) EXPECT_TRUE(Exists(file)) << file;

  LeaveOutRank1(files_, root_ + "/step-00000004.g2");
  const Said hole = Say({"export", "4", dir_ / "hole.safetensors", "--part", "toy"});
  EXPECT_EQ(hole.code, 1);
  EXPECT_THAT(hole.text, HasSubstr("toy."));
  EXPECT_FALSE(Exists(dir_ / "hole.safetensors"));
}

TEST_F(CheckpointVerbs, RestoreDrill) {
  const Said good = Say({"verify", "--restore", "--all"});
  EXPECT_EQ(good.code, 0) << good.text;
  EXPECT_THAT(good.text, HasSubstr("step-00000003.g1: ok"));
  EXPECT_THAT(good.text, HasSubstr("restored and compared"));
  DamageShard(root_ + "/step-00000005.g2", 1);
  const Said bad = Say({"verify", "--restore", "step-00000005.g2"});
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.text, HasSubstr("DAMAGED"));
  EXPECT_THAT(bad.text, HasSubstr("rank-00001-of-00002.safetensors"));
  const nlohmann::json facts = Facts({"verify", "--restore", "step-00000005.g2"}, 1);
  EXPECT_EQ(facts[0].at("restored"), true);
  EXPECT_EQ(facts[0].at("problems").size(), 1u);
}

TEST_F(CheckpointVerbs, PinAndPrune) {
  EXPECT_THAT(Say({"pin", "step-00000001.g1", "--reason", "the paper"}).text,
              HasSubstr("step-00000001.g1 is pinned"));
  EXPECT_EQ(Facts({"ls"}).back().at("pin_reason"), "the paper");
  EXPECT_THAT(Say({"ls"}).text, HasSubstr("pinned"));

  // The one that wrote it is alive: this test.
  const Said busy = Say({"prune", "--keep-last-n", "2"});
  EXPECT_EQ(busy.code, 2);
  EXPECT_THAT(busy.text, HasSubstr("generation 2 is at work"));
  EXPECT_THAT(busy.text, HasSubstr("--fence"));

  WriteDeadClaim(files_, root_, Generation(3));
  const Said look = Say({"prune", "--keep-last-n", "2", "--dry-run"});
  EXPECT_EQ(look.code, 0);
  EXPECT_THAT(look.text, HasSubstr("would go  step-00000002.g1"));
  EXPECT_TRUE(Exists(root_ + "/step-00000002.g1"));
  const nlohmann::json pruned = Facts({"prune", "--keep-last-n", "2"});
  EXPECT_EQ(pruned.at("deleted"), nlohmann::json::array({".trash-step-00000002.g1"}));
  EXPECT_FALSE(Exists(root_ + "/step-00000002.g1"));
  EXPECT_TRUE(Exists(root_ + "/step-00000001.g1"));

  EXPECT_EQ(Facts({"pin", "1", "--unpin"}).at("pinned"), false);
  const Said twice = Say({"pin", "1", "--unpin"});
  EXPECT_EQ(twice.code, 2);
  EXPECT_THAT(twice.text, HasSubstr("step-00000001.g1 is not pinned"));
  EXPECT_THAT(Say({"ls"}).text, Not(HasSubstr("pinned")));
}

}  // namespace
}  // namespace perdure
