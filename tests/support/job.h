// A fixture that runs a job for real: `perdure run` with its supervisor, agents and ranks, in a
// directory of its own; whatever happens, nothing of it is left running.
//
// The test that uses it defines PERDURE_PROGRAM and links supervisor/launch and support/child.cc.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/posix.h"
#include "supervisor/agent/proc.h"
#include "supervisor/agent/process_tree.h"
#include "support/child.h"
#include "support/temp_dir.h"

namespace perdure {

// For what takes a moment, on a machine that may be busy.
inline Deadline Soon() {
  return Deadline::After(std::chrono::seconds(60));
}

class JobTest : public testing::Test {
 protected:
  JobTest() : home_(std::filesystem::canonical(dir_.path()).string()) {
    state_ = home_ + "/job.perdure";
  }

  ~JobTest() override {
    run_.reset();
    EXPECT_TRUE(agent::KillMarked(agent::JobMarker(state_), Soon()).empty());
  }

  // `settings`: the lines under training_job, indented by two.
  void WriteJobFile(const std::string& settings) {
    std::ofstream(home_ + "/job.yaml") << "training_job:\n  name: job\n" << settings;
  }

  void Run(std::vector<std::string> more = {}) {
    std::vector<std::string> argv = {PERDURE_PROGRAM, "run", home_ + "/job.yaml"};
    argv.insert(argv.end(), more.begin(), more.end());
    run_ = std::make_unique<Child>(argv, std::map<std::string, std::string>{{"OUT", home_}},
                                   home_ + "/run.out");
  }

  struct Answer {
    int code = -1;
    std::string text;
  };
  Answer Ask(std::vector<std::string> words) {
    words.insert(words.begin(), PERDURE_PROGRAM);
    const std::string output = home_ + "/ask-" + std::to_string(asked_++);
    Child child(words, {}, output);
    const std::optional<int> code = child.Wait(Soon());
    return {code.value_or(-1), child.Output()};
  }

  bool WaitForFile(const std::string& name) {
    const Deadline deadline = Soon();
    while (Read(name).find('\n') == std::string::npos) {
      if (deadline.Passed(RealClock().Now())) return false;
      ::poll(nullptr, 0, 10);
    }
    return true;
  }

  std::string Read(const std::string& name) {
    const Result<std::string> text = ReadSmallFile(home_ + "/" + name);
    return text.ok() ? *text : "";
  }

  pid_t PidIn(const std::string& name) {
    EXPECT_TRUE(WaitForFile(name)) << name << "\n" << run_->Output();
    return static_cast<pid_t>(std::atoi(Read(name).c_str()));
  }

  // Every process that mentions this test's directory: ranks by their marker, the others by their
  // words.
  std::vector<std::string> Left() {
    std::vector<std::string> left;
    for (const agent::ProcessStat& process : agent::ReadAllStats()) {
      if (!process.alive()) continue;
      const Result<std::string> words =
          ReadSmallFile("/proc/" + std::to_string(process.pid) + "/cmdline");
      const std::string marker =
          agent::ReadVariableOf(process.pid, agent::kMarkerVariable).value_or("");
      if ((words.ok() && words->find(home_) != std::string::npos) ||
          marker.find(home_) != std::string::npos) {
        left.push_back(process.name);
      }
    }
    return left;
  }

  bool WaitNothingLeft() {
    const Deadline deadline = Soon();
    while (!Left().empty()) {
      if (deadline.Passed(RealClock().Now())) return false;
      ::poll(nullptr, 0, 20);
    }
    return true;
  }

  TempDir dir_;
  const std::string home_;
  std::string state_;
  std::unique_ptr<Child> run_;
  int asked_ = 0;
};

}  // namespace perdure
