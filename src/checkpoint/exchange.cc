#include "checkpoint/exchange.h"

#include <fmt/format.h>

#include "base/log.h"
#include "base/parse.h"

namespace perdure {
namespace {

// How long a wait may take to notice that the engine stops.
constexpr Duration kSlice = std::chrono::milliseconds(100);

std::string PartKey(const std::string& key, std::size_t part) {
  return fmt::format("{}#{}", key, part);
}

}  // namespace

std::string OneLine(const nlohmann::json& message) {
  return message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string FormatError(const Status& error) {
  return OneLine({{"error", error.message()}, {"code", static_cast<int>(error.code())}});
}

Status ErrorIn(const nlohmann::json& message) {
  if (!message.is_object() || !message.contains("error")) return Ok();
  const int code = message.value("code", static_cast<int>(Code::kInternal));
  const bool known = code > 0 && code <= static_cast<int>(Code::kInternal);
  return Status(known ? static_cast<Code>(code) : Code::kInternal, message.value("error", ""));
}

// The value under `key` is "<number of parts>\n<first part>"; the others lie under "key#1" … and
// are put first, so that whoever sees the key finds them.
Status Exchange::Put(const std::string& key, std::string_view text, Deadline deadline) {
  const std::size_t parts = text.size() / kValueBytesMax + 1;
  for (std::size_t part = 1; part < parts; ++part) {
    PERDURE_RETURN_IF_ERROR(group_.Publish(
        PartKey(key, part), text.substr(part * kValueBytesMax, kValueBytesMax), deadline));
  }
  return group_.Publish(key, fmt::format("{}\n{}", parts, text.substr(0, kValueBytesMax)),
                        deadline);
}

Result<std::string> Exchange::Whole(const std::string& key, std::string first, Deadline deadline) {
  const std::size_t line = first.find('\n');
  const std::optional<std::int64_t> parts =
      line == std::string::npos ? std::nullopt
                                : ParseInteger(std::string_view(first).substr(0, line));
  if (!parts.has_value()) {
    return Status(Code::kInternal, fmt::format("{} does not hold a text in parts", key));
  }
  first.erase(0, line + 1);
  for (std::int64_t part = 1; part < *parts; ++part) {
    PERDURE_ASSIGN_OR_RETURN(const std::string more, group_.Await(PartKey(key, part), deadline));
    first += more;
  }
  return first;
}

Result<std::string> Exchange::Get(const std::string& key, Deadline deadline) {
  for (;;) {
    if (stopped_.load()) return Status(Code::kAborted, "the checkpoint engine is closing");
    const Deadline slice = Earlier(deadline, Deadline::After(kSlice, clock_));
    Result<std::string> first = group_.Await(key, slice);
    if (first.ok()) return Whole(key, std::move(first).value(), deadline);
    if (first.status().code() != Code::kDeadlineExceeded) return first.status();
    if (deadline.Passed(clock_.Now())) return first.status();
  }
}

Result<std::string> Exchange::Glance(const std::string& key) {
  const Deadline slice = Deadline::After(kSlice, clock_);
  PERDURE_ASSIGN_OR_RETURN(std::string first, group_.Await(key, slice));
  return Whole(key, std::move(first), Deadline::After(std::chrono::seconds(10), clock_));
}

void Exchange::Forget(const std::string& prefix, Deadline deadline) {
  const Status forgotten = group_.Forget(prefix, deadline);
  if (!forgotten.ok()) Log().debug("{} stays in the store: {}", prefix, forgotten.message());
}

void Exchange::Pause(Duration duration) {
  const Deadline deadline = Deadline::After(duration, clock_);
  MutexLock lock(mutex_);
  while (!stopped_.load() && stop_changed_.WaitUntil(mutex_, deadline)) {
  }
}

void Exchange::Stop() {
  MutexLock lock(mutex_);
  stopped_.store(true);
  stop_changed_.NotifyAll();
}

}  // namespace perdure
