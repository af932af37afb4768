// The command line's end of JobControl.
#pragma once

#include <memory>
#include <string>

#include "control/job_control.h"

namespace perdure::wire {

class GrpcJobControl : public JobControl {
 public:
  // `address` and `token` are those of supervisor.json. Each call has `patience` to answer; a
  // supervisor that is not there gives kUnavailable at once.
  GrpcJobControl(std::string address, std::string token, Duration patience);
  ~GrpcJobControl() override;

  Result<std::string> StatusJson() override;
  Status Events(std::int64_t first, bool follow, Deadline deadline,
                const std::function<bool(const std::string& json)>& on_event) override;
  Status Stop(const std::string& reason) override;
  Status Chaos(const ChaosRequest& request) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perdure::wire
