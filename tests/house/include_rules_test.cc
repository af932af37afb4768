// The arrows between rooms, checked on every source file; and the checker itself, checked on files
// that break each rule, so that its silence means something.
#include "house/include_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace perdure::house {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Repository, EveryIncludeFollowsADeclaredArrow) {
  const std::filesystem::path root = PERDURE_SOURCE_DIR;
  std::vector<std::string> complaints;
  const Rules rules = ParseRules(ReadFile(PERDURE_ARROWS_FILE), &complaints);
  int files = 0;
  for (const char* folder : {"src", "include", "examples"}) {
    if (!std::filesystem::exists(root / folder)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cc") continue;
      const std::string path = std::filesystem::relative(entry.path(), root).generic_string();
      const std::vector<std::string> found = Check(rules, path, ReadFile(entry.path()));
      complaints.insert(complaints.end(), found.begin(), found.end());
      ++files;
    }
  }
  EXPECT_GT(files, 20) << "the repository was not found at " << root;
  EXPECT_GE(rules.reach.size(), 3u) << PERDURE_ARROWS_FILE << " names no rooms";
  EXPECT_TRUE(complaints.empty()) << fmt::format("{}", fmt::join(complaints, "\n"));
}

TEST(Repository, EveryTypeHasANameOfItsOwn) {
  const std::filesystem::path root = PERDURE_SOURCE_DIR;
  std::map<std::string, std::string> defined_in;
  for (const char* folder : {"src", "include"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cc") continue;
      const std::string path = std::filesystem::relative(entry.path(), root).generic_string();
      for (const std::string& type : TypesIn(ReadFile(entry.path()))) {
        const auto [there, added] = defined_in.emplace(type, path);
        EXPECT_TRUE(added) << type << " is defined in " << there->second << " and in " << path;
      }
    }
  }
  EXPECT_GT(defined_in.size(), 200u);
  EXPECT_EQ(defined_in["perdure::wire::GrpcRankPort"], "src/wire/rank_port.h");
}

TEST(Types, AreFoundWhereTheyCanClash) {
  EXPECT_THAT(
      TypesIn("namespace perdure {\n"
              "namespace {\n"
              "struct Hidden {\n"
              "};\n"
              "}  // namespace\n"
              "struct Declared;\n"
              "struct Piece {\n"
              "  struct Inner {\n"
              "  };\n"
              "};\n"
              "template <class T>\n"
              "class Box final : public Piece {\n"
              "};\n"
              "class Outer::Impl {\n"
              "};\n"
              "namespace wire {\n"
              "enum class Slot : int {\n"
              "}  // namespace wire\n"
              "class PERDURE_API Door {\n"
              "};\n"
              "}  // namespace perdure\n"),
      ElementsAre("perdure::Piece", "perdure::Box", "perdure::wire::Slot", "perdure::Door"));
}

class BadTree : public ::testing::Test {
 protected:
  std::vector<std::string> Complaints(std::string_view path, std::string_view text) {
    return Check(rules_, path, text);
  }

  std::vector<std::string> parse_complaints_;
  Rules rules_ = ParseRules(
      "base:\n"
      "tensor:base\n"
      "storage:base\n"
      "checkpoint:tensor,storage\n"
      "control:base\n"
      "wire:control\n"
      "cli:wire\n"
      "supervisor/core:control\n"
      "torch:checkpoint\n",
      &parse_complaints_);
};

TEST_F(BadTree, ArrowsReachThroughArrows) {
  EXPECT_THAT(parse_complaints_, IsEmpty());
  EXPECT_THAT(Complaints("src/torch/state.cc",
                         "#include <vector>\n#include \"torch/x.h\"\n#include \"storage/store.h\"\n"
                         "#include \"base/check.h\"\n#include \"perdure/torch.h\"\n"),
              IsEmpty());
}

TEST_F(BadTree, AnIncludeAgainstTheArrowsIsNamed) {
  EXPECT_THAT(
      Complaints("src/storage/posix_store.cc",
                 "#include <vector>\n\n#include \"checkpoint/manifest.h\"\n"),
      ElementsAre("src/storage/posix_store.cc:3: room storage includes checkpoint/manifest.h: "
                  "there is no arrow to checkpoint; it may include base storage"));
}

TEST_F(BadTree, ARoomWithinAFolderIsItsOwnRoom) {
  EXPECT_THAT(Complaints("src/supervisor/core/step.cc", "#include \"wire/server.h\"\n"),
              ElementsAre(HasSubstr("room supervisor/core includes wire/server.h")));
}

TEST_F(BadTree, OnlyWireKnowsProtobuf) {
  const std::string text = "#include <grpcpp/grpcpp.h>\n#include \"perdure/v1/link.pb.h\"\n";
  EXPECT_THAT(Complaints("src/wire/server.cc", text), IsEmpty());
  EXPECT_THAT(Complaints("src/cli/run.cc", text),
              ElementsAre(HasSubstr("src/cli/run.cc:1:"), HasSubstr("src/cli/run.cc:2:")));
}

TEST_F(BadTree, OnlyTorchKnowsLibtorch) {
  EXPECT_THAT(
      Complaints("src/checkpoint/a.cc", "#include <torch/torch.h>\n#include \"perdure/torch.h\"\n"),
      ElementsAre(HasSubstr("only torch"), HasSubstr("only torch")));
}

TEST_F(BadTree, APublicHeaderStandsOnTheStandardLibrary) {
  EXPECT_THAT(Complaints("include/perdure/a.h", "#include <cstdint>\n#include \"perdure/b.h\"\n"),
              IsEmpty());
  EXPECT_THAT(Complaints("include/perdure/a.h", "#include <fmt/format.h>\n"),
              ElementsAre(HasSubstr("include/perdure/a.h:1")));
  EXPECT_THAT(Complaints("include/perdure/a.h", "#include \"base/check.h\"\n"),
              ElementsAre(HasSubstr("base/check.h")));
  EXPECT_THAT(Complaints("include/perdure/a.h", "#include \"perdure/torch.h\"\n"),
              ElementsAre(HasSubstr("perdure/torch.h")));
  EXPECT_THAT(Complaints("include/perdure/torch.h", "#include <torch/torch.h>\n"), IsEmpty());
}

TEST_F(BadTree, AFileOutsideEveryRoomIsNamed) {
  EXPECT_THAT(Complaints("src/attic/a.cc", ""), ElementsAre(HasSubstr("lies in no room")));
  rules_.partial = true;
  EXPECT_THAT(Complaints("src/attic/a.cc", ""), IsEmpty());
}

TEST_F(BadTree, RawTimeChanceAndEnvironmentAreRefused) {
  for (const char* line :
       {"auto t = std::chrono::steady_clock::now();", "const char* v = std::getenv(name);",
        "std::this_thread::sleep_for(x);", "sleep(1);", "int r = rand();", "std::random_device d;",
        "time(nullptr);", "clock_gettime(CLOCK_MONOTONIC, &ts);"}) {
    EXPECT_EQ(Complaints("src/storage/a.cc", line).size(), 1u) << line;
    EXPECT_THAT(Complaints("src/base/a.cc", line), IsEmpty()) << line;
    EXPECT_THAT(Complaints("src/cli/a.cc", line), IsEmpty()) << line;
  }
}

TEST_F(BadTree, WordsInCommentsAndStringsAreNotUses) {
  EXPECT_THAT(Complaints("src/storage/a.cc",
                         "// getenv() is not for us\n/* steady_clock::now\n rand() */\n"
                         "auto s = \"say \\\"getenv\\\"\"; int n = 1'000; char c = '\"';\n"
                         "// #include \"wire/server.h\"\n"
                         "brand(1); strand(2); uptime(nullptr); a.time(0);\n"),
              IsEmpty());
  EXPECT_THAT(Complaints("src/storage/a.cc", "auto s = R\"x(a \"quoted\"\n getenv(b) )x\";"),
              IsEmpty());
  EXPECT_EQ(Complaints("src/storage/a.cc", "auto s = \"x\"; getenv(s);").size(), 1u);
}

TEST_F(BadTree, ACycleAndAnUnknownRoomAreNamed) {
  std::vector<std::string> complaints;
  ParseRules("base:\na:b\nb:a\nc:nowhere\n", &complaints);
  EXPECT_THAT(complaints,
              ElementsAre("room c points to nowhere, which is no room",
                          "room a lies on a cycle of arrows", "room b lies on a cycle of arrows"));
}

}  // namespace
}  // namespace perdure::house
