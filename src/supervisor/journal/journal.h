// The journal: what happened to a job and what was decided, in the order in which it was decided.
// SQLite in WAL mode with synchronous FULL: when Append returns, it survives power loss.
//
//   meta(key, value)                 schema_version, job
//   terms(term, wall_ms, policy)     one row per start of a supervisor; JSON of the policy
//   events(number, term, t_ns, wall_ms, node, incarnation, agent_number,
//          kind, body, text, detail, sentence, effects)
//                                    one row per heard or derived event; body and effects are JSON,
//                                    text, detail and sentence are what people read
//
// The state of the decision core is a function of `terms` and `events` alone: see replay.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/posix.h"
#include "perdure/clock.h"
#include "perdure/status.h"
#include "supervisor/core/step.h"

struct sqlite3;

namespace perdure::journal {

inline constexpr int kSchemaVersion = 1;

struct Record {
  std::int64_t number = 0;  // from 1, without gaps
  std::int64_t term = 0;
  std::int64_t wall_ms = 0;
  core::Event event;
  std::string text;  // Describe(event)
  std::string detail;
  std::string sentence;
  std::vector<std::string> effects;  // Describe(effect)
};

struct Term {
  std::int64_t term = 0;
  std::int64_t wall_ms = 0;
  core::Policy policy;
};

// "<state directory>/journal.db".
std::string JournalPath(const std::string& state_directory);

// Reading, also beside a running supervisor. Not thread-safe.
class Reader {
 public:
  // kNotFound: there is none.
  static Result<std::unique_ptr<Reader>> Open(const std::string& state_directory);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Result<std::vector<Term>> Terms();
  // From `first` on, until `on_record` says false.
  Status Events(std::int64_t first, const std::function<bool(const Record&)>& on_record);

 private:
  explicit Reader(sqlite3* db) : db_(db) {}
  sqlite3* db_;
};

// Writing: one supervisor at a time, for as long as this lives. Not thread-safe.
class Writer {
 public:
  // Creates directory and journal when absent. kFailedPrecondition: another supervisor holds it, it
  // belongs to another job, or its schema is a newer one.
  static Result<std::unique_ptr<Writer>> Open(const std::string& state_directory,
                                              const std::string& job);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  Status BeginTerm(const Term& term);
  // All of them, durably, or none. Fills in their numbers.
  Status Append(std::vector<Record>& records);
  std::int64_t last_number() const { return last_number_; }

 private:
  Writer(sqlite3* db, UniqueFd lock) : db_(db), lock_(std::move(lock)) {}
  sqlite3* db_;
  UniqueFd lock_;
  std::int64_t last_number_ = 0;
};

// As `perdure events` prints it: {"number":…,"t":…,"time":…,"event":…,"text":…,…}.
std::string ToJson(const Record& record);
// As a transcript shows it: the event, "-> detail" and the sentence, one line each.
std::string ToText(const Record& record);

}  // namespace perdure::journal
