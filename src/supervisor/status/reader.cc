#include "supervisor/status/reader.h"

#include <algorithm>

#include "supervisor/journal/journal.h"
#include "supervisor/journal/replay.h"
#include "supervisor/status/status.h"

namespace perdure {
namespace {

// The job's own time at a moment of the wall clock: a job whose supervisor is gone goes on aging.
Duration TimeAt(const journal::Replayed& replayed, WallTime now) {
  const auto wall_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  return std::max<Duration>(replayed.last_t,
                            std::chrono::milliseconds(wall_ms - replayed.wall_epoch_ms));
}

Result<journal::Replayed> ReplayDirectory(const std::string& directory) {
  PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<journal::Reader> reader,
                           journal::Reader::Open(directory));
  return journal::Replay(*reader);
}

}  // namespace

Result<std::string> JobReader::StatusJson(WallTime now) const {
  PERDURE_ASSIGN_OR_RETURN(const journal::Replayed replayed, ReplayDirectory(directory_));
  return StatusJsonOf(replayed.policy, replayed.state, TimeAt(replayed, now), false);
}

Status JobReader::Events(std::int64_t first,
                         const std::function<bool(const std::string&)>& on_event) const {
  PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<journal::Reader> reader,
                           journal::Reader::Open(directory_));
  return reader->Events(
      first, [&](const journal::Record& record) { return on_event(journal::ToJson(record)); });
}

Result<std::string> JobReader::ReportJson(WallTime now) const {
  PERDURE_ASSIGN_OR_RETURN(const journal::Replayed replayed, ReplayDirectory(directory_));
  return ReportJsonOf(replayed.policy, replayed.state, TimeAt(replayed, now));
}

}  // namespace perdure
