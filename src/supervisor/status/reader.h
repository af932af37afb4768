// What the journal alone can say about a job: for `perdure status`, `events` and `report` when the
// supervisor does not answer, or has long finished.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "perdure/clock.h"
#include "perdure/status.h"

namespace perdure {

// Opens the journal read-only; safe beside a running supervisor. kNotFound: no journal there.
class JobReader {
 public:
  explicit JobReader(std::string state_directory) : directory_(std::move(state_directory)) {}

  // The same JSON as the running supervisor gives, with "answered_by": "journal".
  Result<std::string> StatusJson(WallTime now) const;
  // Events from number `first` on, oldest first, one JSON object each, until `on_event` says false.
  Status Events(std::int64_t first, const std::function<bool(const std::string&)>& on_event) const;
  // Contracts of `perdure report --format json`.
  Result<std::string> ReportJson(WallTime now) const;

 private:
  std::string directory_;
};

// For people. The first line answers: is it training, is it healing, must I act.
std::string StatusText(const std::string& status_json);
std::string ReportText(const std::string& report_json);

}  // namespace perdure
