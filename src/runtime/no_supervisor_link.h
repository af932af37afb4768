// The link of a rank that nobody supervises: it hears nothing, and what it says goes nowhere.
#pragma once

#include <utility>

#include "control/link.h"

namespace perdure {

class NoSupervisorLink final : public SupervisorLink {
 public:
  explicit NoSupervisorLink(RankWelcome welcome) : welcome_(std::move(welcome)) {}

  Result<RankWelcome> Open(const RankHello&, std::function<void(const RankCommand&)>,
                           std::function<void()>, Deadline) override {
    return welcome_;
  }
  Status Send(const RankMessage&) override { return Ok(); }
  void Close(Deadline) override {}

 private:
  RankWelcome welcome_;
};

}  // namespace perdure
