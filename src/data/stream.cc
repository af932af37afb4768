#include "data/stream.h"

#include <algorithm>

#include "base/check.h"

namespace perdure {

StreamPosition Stream::At(StreamPosition ordinal) const {
  StreamPosition position = base_position + ordinal;
  for (const SampleRange& range : skipped) {
    if (position < range.begin) break;
    // A range that base_position lies in only counts from there on.
    position += range.end - std::max<StreamPosition>(range.begin, base_position);
  }
  return position;
}

Stream Resume(const Stream& old, std::int64_t step, std::int64_t batch,
              const std::vector<SampleRange>& skipped) {
  PERDURE_CHECK(step >= old.base_step, "a stream resumes at or after its base");
  Stream next;
  next.base_step = step;
  // One past the last position consumed, and not old.FirstOf(step): ranges between the two are
  // still in `old.skipped`, and stay there.
  const StreamPosition consumed = static_cast<StreamPosition>(step - old.base_step) * old.batch;
  next.base_position = consumed == 0 ? old.base_position : old.At(consumed - 1) + 1;
  next.batch = batch;

  const bool adds_nothing =
      std::all_of(skipped.begin(), skipped.end(), [&](const SampleRange& range) {
        return range.end <= range.begin || range.end <= next.base_position ||
               std::any_of(old.skipped.begin(), old.skipped.end(), [&](const SampleRange& known) {
                 return std::max<StreamPosition>(range.begin, next.base_position) >= known.begin &&
                        range.end <= known.end;
               });
      });
  if (batch == old.batch && adds_nothing) return old;

  std::vector<SampleRange> all = old.skipped;
  all.insert(all.end(), skipped.begin(), skipped.end());
  std::sort(all.begin(), all.end(),
            [](const SampleRange& a, const SampleRange& b) { return a.begin < b.begin; });
  for (const SampleRange& range : all) {
    if (range.end <= range.begin || range.end <= next.base_position) continue;
    if (!next.skipped.empty() && range.begin <= next.skipped.back().end) {
      next.skipped.back().end = std::max(next.skipped.back().end, range.end);
    } else {
      next.skipped.push_back(range);
    }
  }
  return next;
}

}  // namespace perdure
