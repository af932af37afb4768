#include "runtime/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace perdure {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Result<Environment> Read(const Variables& variables, const SessionOptions& options = {}) {
  return ReadEnvironment(
      [&](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        if (found == variables.end()) return std::nullopt;
        return found->second;
      },
      options);
}

TEST(Environment, NothingSetIsOneRankAlone) {
  const auto environment = Read({});
  ASSERT_TRUE(environment.ok());
  EXPECT_EQ(environment->start, Environment::Start::kAlone);
  EXPECT_EQ(environment->world_size, 1);
  EXPECT_EQ(environment->checkpoint.directory, "");
}

TEST(Environment, AsTorchrunSetsIt) {
  const Variables torchrun = {{"RANK", "2"},
                              {"WORLD_SIZE", "4"},
                              {"LOCAL_RANK", "0"},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", "29500"},
                              {"TORCHELASTIC_RESTART_COUNT", "3"},
                              {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  const auto environment = Read(torchrun);
  ASSERT_TRUE(environment.ok());
  EXPECT_EQ(environment->start, Environment::Start::kLaunched);
  EXPECT_EQ(environment->rank, Rank(2));
  EXPECT_EQ(environment->store_host, "127.0.0.1");
  EXPECT_EQ(environment->store_port, 29501);  // 29500 belongs to torchrun's own store
  EXPECT_EQ(environment->restart_count, 3);
}

TEST(Environment, TheAgentComesFirst) {
  const auto environment = Read({{"RANK", "1"},
                                 {"WORLD_SIZE", "2"},
                                 {"MASTER_ADDR", "127.0.0.1"},
                                 {"MASTER_PORT", "29500"},
                                 {"PERDURE_AGENT", "unix:/run/x"},
                                 {"PERDURE_GENERATION", "5"},
                                 {"PERDURE_JOB", "gpt"}});
  ASSERT_TRUE(environment.ok());
  EXPECT_EQ(environment->start, Environment::Start::kSupervised);
  EXPECT_EQ(environment->generation, Generation(5));
  EXPECT_EQ(environment->job, "gpt");
}

TEST(Environment, OptionsComeBeforeVariables) {
  SessionOptions options;
  options.checkpoint_directory = "/mine";
  options.checkpoint_interval = 7;
  const auto environment =
      Read({{"PERDURE_CHECKPOINT_DIR", "/theirs"}, {"PERDURE_CHECKPOINT_INTERVAL", "9"}}, options);
  ASSERT_TRUE(environment.ok());
  EXPECT_EQ(environment->checkpoint.directory, "/mine");
  EXPECT_EQ(environment->checkpoint.interval_steps, 7);
}

TEST(Environment, HowCopiesAreMade) {
  const auto environment = Read(
      {{"PERDURE_CHECKPOINT_STAGING_BYTES", "1000000"}, {"PERDURE_CHECKPOINT_WHEN_BUSY", "queue"}});
  ASSERT_TRUE(environment.ok());
  EXPECT_EQ(environment->checkpoint.staging_bytes_max, 1'000'000);
  EXPECT_EQ(environment->checkpoint.when_busy, SaveWhenBusy::kQueue);
}

TEST(Environment, AnIntervalThatIsChosen) {
  const auto environment =
      Read({{"PERDURE_CHECKPOINT_INTERVAL", "auto"}, {"PERDURE_CHECKPOINT_MAX_LOST_MINUTES", "5"}});
  ASSERT_TRUE(environment.ok());
  EXPECT_TRUE(environment->checkpoint.interval_auto);
  EXPECT_EQ(environment->checkpoint.max_lost_ms, 300'000);
  EXPECT_EQ(environment->checkpoint.interval_steps, 0);
}

TEST(Environment, ErrorsNameVariableAndFix) {
  EXPECT_THAT(Read({{"RANK", "two"}, {"WORLD_SIZE", "4"}}).status().message(),
              HasSubstr("RANK=\"two\" is not a whole number"));
  EXPECT_THAT(Read({{"RANK", "4"}, {"WORLD_SIZE", "4"}}).status().message(),
              HasSubstr("RANK=4 is not in 0..3"));
  EXPECT_THAT(Read({{"RANK", "0"}}).status().message(), HasSubstr("WORLD_SIZE is not"));
  EXPECT_THAT(Read({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).status().message(),
              HasSubstr("needs MASTER_ADDR and MASTER_PORT"));
  EXPECT_THAT(
      Read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}})
          .status()
          .message(),
      HasSubstr("MASTER_ADDR=node1"));
  EXPECT_THAT(Read({{"PERDURE_AGENT", "unix:/x"}}).status().message(), HasSubstr("perdure run"));
  EXPECT_THAT(Read({{"PERDURE_CHECKPOINT_KEEP", "1"}}).status().message(),
              HasSubstr("nothing to fall back to"));
  EXPECT_THAT(Read({{"PERDURE_CHECKPOINT_WHEN_BUSY", "panic"}}).status().message(),
              HasSubstr("none of wait, skip, queue"));
  EXPECT_THAT(Read({{"PERDURE_CHECKPOINT_STAGING_BYTES", "-1"}}).status().message(),
              HasSubstr("PERDURE_CHECKPOINT_STAGING_BYTES=-1 is negative"));
  EXPECT_THAT(Read({{"PERDURE_RESUME", "maybe"}}).status().message(), HasSubstr("require"));
}

}  // namespace
}  // namespace perdure
