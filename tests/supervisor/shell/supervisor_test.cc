// The supervisor with its journal, on agents in memory. No gRPC, no processes: clean under TSan.
// Time is real and nothing waits for it: the world turns when the supervisor has said something.
#include "supervisor/shell/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/thread.h"
#include "supervisor/journal/journal.h"
#include "supervisor/shell/claims.h"
#include "supervisor/shell/fake_agents.h"
#include "supervisor/status/reader.h"
#include "support/temp_dir.h"

namespace perdure {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Moment = SupervisorOptions::Moment;

JobFile TinyJob() {
  JobFile job;
  job.path = "/jobs/job.yaml";
  job.directory = "/jobs";
  job.name = "tiny";
  job.command = {"true"};
  job.launch.nodes = 2;
  job.launch.spares = 1;
  job.launch.ranks_per_node = 2;
  return job;
}

// Supervisors come and go on one state directory; the agents stay.
class Stage {
 public:
  explicit Stage(FakeAgents::Plan plan = {}) : agents_(std::move(plan)) {}

  // Leads the job until this supervisor ends: an exit code, or the error it ended with. `act` runs
  // on the test's thread after each turn of the world, `part` before the supervisor is destroyed.
  Result<int> Lead(const std::function<bool(Moment)>& survives = {},
                   const std::function<void(Supervisor&)>& act = {},
                   const std::function<void()>& part = {}) {
    SupervisorOptions options;
    options.job = TinyJob();
    options.state_directory = directory_.path();
    options.survives = survives;
    options.on_line = [this](const std::string& line) { lines_ += line + "\n"; };
    PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<Supervisor> supervisor,
                             Supervisor::Create(std::move(options), agents_, RealClock()));
    std::atomic<bool> over = false;
    Result<int> result = Status(Code::kInternal, "not run");
    Thread loop("supervisor", [&] {
      result = supervisor->Run();
      over = true;
    });
    const Deadline limit = Deadline::After(std::chrono::seconds(60));
    while (!over && !limit.Passed(RealClock().Now())) {
      agents_.Pump();
      if (act && !over) act(*supervisor);
      agents_.AwaitCommand(Deadline::After(std::chrono::milliseconds(5)));
    }
    EXPECT_TRUE(over) << "the supervisor does not end:\n" << lines_;
    if (!over) supervisor->OnSignal(9);
    loop.Join();
    if (part) part();
    return result;
  }

  FakeAgents& agents() { return agents_; }
  const std::string& lines() const { return lines_; }
  const std::string& directory() const { return directory_.path(); }
  bool Closed() const {
    bool closed = false;
    EXPECT_TRUE(JobReader(directory())
                    .Events(1,
                            [&](const std::string& event) {
                              closed = json::parse(event)["event"] == "job_closed";
                              return true;
                            })
                    .ok());
    return closed;
  }
  json Report() const {
    const Result<std::string> report = JobReader(directory()).ReportJson(RealClock().WallNow());
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? json::parse(*report) : json();
  }

 private:
  TempDir directory_;
  FakeAgents agents_;
  std::string lines_;
};

TEST(Supervisor, HealsAKilledRankAndFinishes) {
  Stage stage;
  const Result<int> code = stage.Lead();
  ASSERT_TRUE(code.ok()) << code.status().message();
  EXPECT_EQ(*code, 0);
  EXPECT_FALSE(stage.agents().AnythingRunning());
  EXPECT_THAT(stage.lines(), HasSubstr("rank 3 on b was killed (signal 9)"));
  EXPECT_THAT(stage.lines(), HasSubstr("restarting all ranks as generation 2 from step 3"));
  for (const auto& [rank, times] : stage.agents().starts()) EXPECT_EQ(times, 1);
  EXPECT_EQ(stage.agents().starts().size(), 8u);

  const json report = stage.Report();
  EXPECT_EQ(report["exit_code"], 0);
  EXPECT_EQ(report["generations"], 2);
  ASSERT_EQ(report["interruptions"].size(), 1u);
  EXPECT_EQ(report["interruptions"][0]["rank"], 3);
  EXPECT_EQ(report["interruptions"][0]["node"], "b");
  EXPECT_EQ(report["interruptions"][0]["steps_lost"], 1);
  double sum = 0;
  for (const auto& bucket : report["buckets_seconds"]) sum += bucket.get<double>();
  EXPECT_NEAR(sum, report["wall_seconds"].get<double>(), 1e-6);  // ACCT-1
}

TEST(Supervisor, AnswersWhileItLeadsAndItsJournalAfterwards) {
  Stage stage;
  bool training = false;
  const Result<int> code = stage.Lead({}, [&](Supervisor& supervisor) {
    const Result<std::string> status = supervisor.control().StatusJson();
    ASSERT_TRUE(status.ok());
    const json parsed = json::parse(*status);
    EXPECT_EQ(parsed["answered_by"], "supervisor");
    if (parsed["state"] == "training" && parsed["step"] >= 0) {
      training = true;
      EXPECT_EQ(parsed["nodes"].size(), 3u);
      EXPECT_THAT(StatusText(*status), HasSubstr("tiny: training: generation"));
      // What a reader sees beside the running supervisor.
      EXPECT_TRUE(JobReader(stage.directory()).StatusJson(RealClock().WallNow()).ok());
    }
  });
  ASSERT_TRUE(code.ok());
  EXPECT_TRUE(training);
  const Result<std::string> status = JobReader(stage.directory()).StatusJson(RealClock().WallNow());
  ASSERT_TRUE(status.ok()) << status.status().message();
  EXPECT_EQ(json::parse(*status)["state"], "done");
  EXPECT_EQ(json::parse(*status)["answered_by"], "journal");
  EXPECT_THAT(StatusText(*status), HasSubstr("tiny: done: all 4 ranks are done"));
  EXPECT_THAT(ReportText(stage.Report().dump()), HasSubstr("ETTR"));
}

TEST(Supervisor, EventsAreNumberedWithoutGapsAndCanBeFollowed) {
  Stage stage;
  std::vector<std::int64_t> numbers;
  Thread follower;
  const auto follow = [&](Supervisor& supervisor) {
    if (follower.joinable()) return;
    follower = Thread("follower", [&numbers, &supervisor] {
      const Status status = supervisor.control().Events(
          1, true, Deadline::After(std::chrono::seconds(60)), [&](const std::string& text) {
            const json event = json::parse(text);
            numbers.push_back(event["number"].get<std::int64_t>());
            return event["event"] != "job_closed";
          });
      EXPECT_TRUE(status.ok()) << status.message();
    });
  };
  const Result<int> code = stage.Lead({}, follow, [&] { follower.Join(); });
  ASSERT_TRUE(code.ok());
  ASSERT_FALSE(numbers.empty());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(numbers[i], static_cast<std::int64_t>(i) + 1);
  }
}

TEST(Supervisor, StopTakesOneCheckpointAndEndsWithZero) {
  FakeAgents::Plan plan;
  plan.kill_at_step = -5;  // no other fault
  plan.hold_at_step = 4;
  Stage stage(plan);
  bool asked = false;
  const Result<int> code = stage.Lead({}, [&](Supervisor& supervisor) {
    if (asked || stage.agents().starts().empty()) return;
    asked = true;
    EXPECT_TRUE(supervisor.control().Stop("enough for today").ok());
  });
  ASSERT_TRUE(code.ok());
  EXPECT_EQ(*code, 0);
  EXPECT_FALSE(stage.agents().AnythingRunning());
}

TEST(Supervisor, SignalEndsWith128PlusN) {
  FakeAgents::Plan plan;
  plan.kill_at_step = -5;  // no other fault
  plan.hold_at_step = 4;
  Stage stage(plan);
  bool asked = false;
  const Result<int> code = stage.Lead({}, [&](Supervisor& supervisor) {
    if (asked || stage.agents().starts().empty()) return;
    asked = true;
    supervisor.OnSignal(15);
  });
  ASSERT_TRUE(code.ok());
  EXPECT_EQ(*code, 143);
}

TEST(Supervisor, DrillsAreCheckedAndCarriedOut) {
  FakeAgents::Plan plan;
  plan.kill_at_step = -5;  // no other fault
  plan.hold_at_step = 4;
  Stage stage(plan);
  bool asked = false;
  const Result<int> code = stage.Lead({}, [&](Supervisor& supervisor) {
    if (asked || stage.agents().starts().empty()) return;
    asked = true;
    ChaosRequest request;
    request.rank = Rank(4);
    EXPECT_THAT(supervisor.control().Chaos(request).message(), HasSubstr("ranks are 0 to 3"));
    request.rank = Rank(1);
    request.signal = 1000;
    EXPECT_FALSE(supervisor.control().Chaos(request).ok());
    request.signal = 9;
    request.at_step = Step(4);
    EXPECT_TRUE(supervisor.control().Chaos(request).ok());
    request.target = ChaosRequest::Target::kAgent;
    request.node = "zz";
    EXPECT_THAT(supervisor.control().Chaos(request).message(), HasSubstr("nodes are a, b, c"));
  });
  ASSERT_TRUE(code.ok());
  EXPECT_EQ(*code, 0);
  EXPECT_THAT(stage.lines(), HasSubstr("rank 1 on a was killed (signal 9)"));
}

TEST(Supervisor, OnlyOneLeads) {
  TempDir directory;
  FakeAgents agents({});
  SupervisorOptions options;
  options.job = TinyJob();
  options.state_directory = directory.path();
  const auto first = Supervisor::Create(options, agents, RealClock());
  ASSERT_TRUE(first.ok());
  const auto second = Supervisor::Create(options, agents, RealClock());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr("another supervisor leads this job"));
}

TEST(Supervisor, AStateDirectoryOfAnotherJobIsRefused) {
  TempDir directory;
  FakeAgents agents({});
  SupervisorOptions options;
  options.job = TinyJob();
  options.state_directory = directory.path();
  ASSERT_TRUE(Supervisor::Create(options, agents, RealClock()).ok());
  options.job.name = "other";
  EXPECT_THAT(Supervisor::Create(options, agents, RealClock()).status().message(),
              HasSubstr("belongs to job tiny, not other"));
}

// SUP-2, SUP-5: killed at the n-th moment before or after the journal or an effect, for every n;
// the next supervisor on the same directory finishes the job, and nothing was done twice.
class KilledAt : public testing::TestWithParam<Moment> {};

TEST_P(KilledAt, EveryMomentIsSurvived) {
  for (int n = 1;; ++n) {
    SCOPED_TRACE("killed at moment " + std::to_string(n));
    Stage stage;
    int seen = 0;
    const Result<int> killed =
        stage.Lead([&](Moment moment) { return moment != GetParam() || ++seen != n; });
    if (killed.ok()) {
      EXPECT_EQ(*killed, 0);
      EXPECT_GT(n, 10) << "the drill must have happened";
      return;  // there are no more moments
    }
    ASSERT_EQ(killed.status().code(), Code::kAborted) << killed.status().message();
    // After the job was closed there is nothing left to lead: the next would be a new run.
    const Result<int> code = stage.Closed() ? Result<int>(0) : stage.Lead();
    ASSERT_TRUE(code.ok()) << code.status().message();
    EXPECT_EQ(*code, 0) << stage.lines();
    EXPECT_FALSE(stage.agents().AnythingRunning());
    for (const auto& [rank, times] : stage.agents().starts()) EXPECT_EQ(times, 1);
    EXPECT_EQ(stage.agents().starts().size(), 8u) << "two generations of four\n" << stage.lines();
    const json report = stage.Report();
    EXPECT_EQ(report["generations"], 2);
    EXPECT_EQ(report["restarts"], 1);
    EXPECT_EQ(report["interruptions"].size(), 1u);
    if (testing::Test::HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Moments, KilledAt,
                         testing::Values(Moment::kBeforeJournal, Moment::kAfterJournal,
                                         Moment::kAfterEffect),
                         [](const testing::TestParamInfo<Moment>& test) {
                           return std::string(test.param == Moment::kBeforeJournal ? "BeforeJournal"
                                              : test.param == Moment::kAfterJournal
                                                  ? "AfterJournal"
                                                  : "AfterEffect");
                         });

TEST(Journal, ASchemaOfTheFutureIsRefused) {
  TempDir directory;
  { ASSERT_TRUE(journal::Writer::Open(directory.path(), "tiny").ok()); }
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(journal::JournalPath(directory.path()).c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "UPDATE meta SET value = '99' WHERE key = 'schema_version'", nullptr,
                         nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(db);
  EXPECT_THAT(journal::Writer::Open(directory.path(), "tiny").status().message(),
              HasSubstr("schema version 99, this program knows 1"));
  EXPECT_FALSE(journal::Reader::Open(directory.path()).ok());
}

TEST(Journal, NothingThereIsNotFound) {
  TempDir directory;
  EXPECT_EQ(JobReader(directory.path()).StatusJson(WallTime()).status().code(), Code::kNotFound);
}

TEST(Claims, OnlyNamesOfGenerationsCount) {
  TempDir directory;
  EXPECT_EQ(HighestClaim(directory.path()), Generation(0));
  std::filesystem::create_directories(directory / "lineage");
  for (const char* name :
       {"g3.claim", "g12.json", "g99.claim.tmp", "h100.claim", "g.claim", "g7x.json"}) {
    std::ofstream(directory / ("lineage/" + std::string(name))) << "{}";
  }
  EXPECT_EQ(HighestClaim(directory.path()), Generation(12));
}

}  // namespace
}  // namespace perdure
