#include "supervisor/journal/replay.h"

#include <fmt/format.h>

#include "supervisor/core/step.h"

namespace perdure::journal {

Result<Replayed> Replay(Reader& reader) {
  PERDURE_ASSIGN_OR_RETURN(const std::vector<Term> terms, reader.Terms());
  Replayed replayed;
  replayed.terms = terms.empty() ? 0 : terms.back().term;
  Status failed;
  std::size_t at = 0;
  PERDURE_RETURN_IF_ERROR(reader.Events(1, [&](const Record& record) {
    while (at + 1 < terms.size() && terms[at].term < record.term) ++at;
    if (terms.empty() || terms[at].term != record.term) {
      failed = Status(Code::kDataLoss, fmt::format("the journal's event {} is of term {}, which it "
                                                   "does not know",
                                                   record.number, record.term));
      return false;
    }
    replayed.policy = terms[at].policy;
    (void)core::Step(replayed.policy, replayed.state, record.event);
    replayed.last_number = record.number;
    replayed.last_t = record.event.t;
    replayed.last_wall_ms = record.wall_ms;
    return true;
  }));
  PERDURE_RETURN_IF_ERROR(failed);
  if (!terms.empty()) replayed.policy = terms.back().policy;
  replayed.wall_epoch_ms = replayed.state.durable.wall_epoch_ms;
  replayed.state.seen = core::Seen();
  return replayed;
}

}  // namespace perdure::journal
