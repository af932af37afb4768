#include "supervisor/journal/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/file.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "supervisor/journal/codec.h"

namespace perdure::journal {
namespace {

using nlohmann::json;

constexpr int kBusyTimeoutMs = 5000;

Status SqlStatus(sqlite3* db, const std::string& doing) {
  const int code = sqlite3_errcode(db);
  const Code ours = code == SQLITE_FULL                               ? Code::kResourceExhausted
                    : code == SQLITE_BUSY || code == SQLITE_IOERR     ? Code::kUnavailable
                    : code == SQLITE_CORRUPT || code == SQLITE_NOTADB ? Code::kDataLoss
                                                                      : Code::kInternal;
  return Status(ours, fmt::format("journal: {}: {}", doing, sqlite3_errmsg(db)));
}

Status Execute(sqlite3* db, const char* sql) {
  if (sqlite3_exec(db, sql, nullptr, nullptr, nullptr) != SQLITE_OK) return SqlStatus(db, sql);
  return Ok();
}

// A prepared statement, finalized with its scope.
class Statement {
 public:
  static Result<Statement> Prepare(sqlite3* db, const char* sql) {
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(db, sql, -1, &statement, nullptr) != SQLITE_OK) {
      return SqlStatus(db, sql);
    }
    return Statement(db, statement);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(Statement&& other) noexcept
      : db_(other.db_), statement_(std::exchange(other.statement_, nullptr)) {}
  Statement& operator=(Statement&&) = delete;

  void Bind(int index, std::int64_t value) { sqlite3_bind_int64(statement_, index, value); }
  void Bind(int index, const std::string& value) {
    sqlite3_bind_text(statement_, index, value.data(), static_cast<int>(value.size()),
                      SQLITE_TRANSIENT);
  }
  // True: a row is there. False: done.
  Result<bool> Next() {
    const int code = sqlite3_step(statement_);
    if (code == SQLITE_ROW) return true;
    if (code == SQLITE_DONE) return false;
    return SqlStatus(db_, sqlite3_sql(statement_));
  }
  Status Run() {
    const Result<bool> row = Next();
    sqlite3_reset(statement_);
    return row.status();
  }
  std::int64_t Integer(int column) const { return sqlite3_column_int64(statement_, column); }
  std::string Text(int column) const {
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return text == nullptr
               ? std::string()
               : std::string(text,
                             static_cast<std::size_t>(sqlite3_column_bytes(statement_, column)));
  }

 private:
  Statement(sqlite3* db, sqlite3_stmt* statement) : db_(db), statement_(statement) {}
  sqlite3* db_;
  sqlite3_stmt* statement_;
};

constexpr char kSchema[] = R"(
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS terms(
  term INTEGER PRIMARY KEY, wall_ms INTEGER NOT NULL, policy TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events(
  number INTEGER PRIMARY KEY, term INTEGER NOT NULL, t_ns INTEGER NOT NULL,
  wall_ms INTEGER NOT NULL, node TEXT NOT NULL, incarnation TEXT NOT NULL,
  agent_number INTEGER NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, text TEXT NOT NULL,
  detail TEXT NOT NULL, sentence TEXT NOT NULL, effects TEXT NOT NULL);
)";

Result<std::string> Meta(sqlite3* db, const std::string& key) {
  PERDURE_ASSIGN_OR_RETURN(Statement query,
                           Statement::Prepare(db, "SELECT value FROM meta WHERE key = ?"));
  query.Bind(1, key);
  PERDURE_ASSIGN_OR_RETURN(const bool found, query.Next());
  return found ? query.Text(0) : std::string();
}

Status CheckSchema(sqlite3* db) {
  PERDURE_ASSIGN_OR_RETURN(const std::string version, Meta(db, "schema_version"));
  if (version == std::to_string(kSchemaVersion)) return Ok();
  return Status(Code::kFailedPrecondition,
                fmt::format("the journal has schema version {}, this program knows {}",
                            version.empty() ? "none" : version, kSchemaVersion));
}

Status Prepare(sqlite3* db, const std::string& job) {
  sqlite3_busy_timeout(db, kBusyTimeoutMs);
  PERDURE_RETURN_IF_ERROR(Execute(db, "PRAGMA journal_mode = WAL"));
  PERDURE_RETURN_IF_ERROR(Execute(db, "PRAGMA synchronous = FULL"));
  PERDURE_RETURN_IF_ERROR(Execute(db, "BEGIN IMMEDIATE"));
  PERDURE_RETURN_IF_ERROR(Execute(db, kSchema));
  PERDURE_ASSIGN_OR_RETURN(const std::string owner, Meta(db, "job"));
  if (owner.empty()) {
    PERDURE_ASSIGN_OR_RETURN(
        Statement insert,
        Statement::Prepare(db, "INSERT INTO meta VALUES('schema_version', ?), ('job', ?)"));
    insert.Bind(1, std::to_string(kSchemaVersion));
    insert.Bind(2, job);
    PERDURE_RETURN_IF_ERROR(insert.Run());
  }
  PERDURE_RETURN_IF_ERROR(Execute(db, "COMMIT"));
  PERDURE_RETURN_IF_ERROR(CheckSchema(db));
  if (!owner.empty() && owner != job) {
    return Status(Code::kFailedPrecondition,
                  fmt::format("the journal belongs to job {}, not {}; choose another state "
                              "directory",
                              owner, job));
  }
  return Ok();
}

std::string EffectsJson(const std::vector<std::string>& effects) {
  return json(effects).dump(-1, ' ', false, json::error_handler_t::replace);
}

double SecondsOf(Duration t) {
  return Seconds(t);
}

std::string TimeOf(const Record& record) {
  return FormatWallTime(
      std::chrono::system_clock::time_point(std::chrono::milliseconds(record.wall_ms)));
}

}  // namespace

std::string JournalPath(const std::string& state_directory) {
  return state_directory + "/journal.db";
}

Result<std::unique_ptr<Reader>> Reader::Open(const std::string& state_directory) {
  const std::string path = JournalPath(state_directory);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return Status(Code::kNotFound, fmt::format("{}: there is no journal of a job here", path));
  }
  sqlite3* db = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READONLY, nullptr);
  std::unique_ptr<Reader> reader(new Reader(db));
  if (code != SQLITE_OK) return SqlStatus(db, "open " + path);
  sqlite3_busy_timeout(db, kBusyTimeoutMs);
  PERDURE_RETURN_IF_ERROR(CheckSchema(db).WithContext(path));
  return reader;
}

Reader::~Reader() {
  sqlite3_close(db_);
}

Result<std::vector<Term>> Reader::Terms() {
  PERDURE_ASSIGN_OR_RETURN(
      Statement query,
      Statement::Prepare(db_, "SELECT term, wall_ms, policy FROM terms ORDER BY term"));
  std::vector<Term> terms;
  while (true) {
    PERDURE_ASSIGN_OR_RETURN(const bool more, query.Next());
    if (!more) return terms;
    PERDURE_ASSIGN_OR_RETURN(core::Policy policy, DecodePolicy(query.Text(2)));
    terms.push_back({query.Integer(0), query.Integer(1), std::move(policy)});
  }
}

Status Reader::Events(std::int64_t first, const std::function<bool(const Record&)>& on_record) {
  PERDURE_ASSIGN_OR_RETURN(
      Statement query,
      Statement::Prepare(db_,
                         "SELECT number, term, t_ns, wall_ms, node, incarnation, agent_number, "
                         "kind, body, text, detail, sentence, effects FROM events "
                         "WHERE number >= ? ORDER BY number"));
  query.Bind(1, first);
  while (true) {
    PERDURE_ASSIGN_OR_RETURN(const bool more, query.Next());
    if (!more) return Ok();
    Record record;
    record.number = query.Integer(0);
    record.term = query.Integer(1);
    record.event.t = Duration(query.Integer(2));
    record.wall_ms = query.Integer(3);
    record.event.node = query.Text(4);
    record.event.incarnation = query.Text(5);
    record.event.number = static_cast<std::uint64_t>(query.Integer(6));
    PERDURE_RETURN_IF_ERROR(DecodeBody(query.Text(7), query.Text(8), record.event));
    record.text = query.Text(9);
    record.detail = query.Text(10);
    record.sentence = query.Text(11);
    const json effects = json::parse(query.Text(12), nullptr, false);
    for (const json& effect : effects) {
      if (effect.is_string()) record.effects.push_back(effect.get<std::string>());
    }
    if (!on_record(record)) return Ok();
  }
}

Result<std::unique_ptr<Writer>> Writer::Open(const std::string& state_directory,
                                             const std::string& job) {
  std::error_code error;
  std::filesystem::create_directories(state_directory, error);
  if (error) return ErrnoStatus(error.value(), "create " + state_directory);
  // Held until this process ends, however it ends.
  const std::string lock_path = state_directory + "/supervisor.lock";
  UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock.valid()) return ErrnoStatus(errno, "open " + lock_path);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, "lock " + lock_path);
    return Status(Code::kFailedPrecondition,
                  fmt::format("{}: another supervisor leads this job; stop it, or choose another "
                              "state directory",
                              state_directory));
  }
  sqlite3* db = nullptr;
  const std::string path = JournalPath(state_directory);
  const int code =
      sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  std::unique_ptr<Writer> writer(new Writer(db, std::move(lock)));
  if (code != SQLITE_OK) return SqlStatus(db, "open " + path);
  PERDURE_RETURN_IF_ERROR(Prepare(db, job).WithContext(path));
  PERDURE_ASSIGN_OR_RETURN(Statement query,
                           Statement::Prepare(db, "SELECT COALESCE(MAX(number), 0) FROM events"));
  PERDURE_ASSIGN_OR_RETURN(const bool found, query.Next());
  writer->last_number_ = found ? query.Integer(0) : 0;
  return writer;
}

Writer::~Writer() {
  sqlite3_close(db_);
}

Status Writer::BeginTerm(const Term& term) {
  PERDURE_ASSIGN_OR_RETURN(Statement insert,
                           Statement::Prepare(db_, "INSERT INTO terms VALUES(?, ?, ?)"));
  insert.Bind(1, term.term);
  insert.Bind(2, term.wall_ms);
  insert.Bind(3, EncodePolicy(term.policy));
  return insert.Run();
}

Status Writer::Append(std::vector<Record>& records) {
  if (records.empty()) return Ok();
  PERDURE_RETURN_IF_ERROR(Execute(db_, "BEGIN IMMEDIATE"));
  std::int64_t number = last_number_;
  const auto insert_all = [&]() -> Status {
    PERDURE_ASSIGN_OR_RETURN(
        Statement insert,
        Statement::Prepare(db_,
                           "INSERT INTO events VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"));
    for (Record& record : records) {
      record.number = ++number;
      insert.Bind(1, record.number);
      insert.Bind(2, record.term);
      insert.Bind(3, record.event.t.count());
      insert.Bind(4, record.wall_ms);
      insert.Bind(5, record.event.node);
      insert.Bind(6, record.event.incarnation);
      insert.Bind(7, static_cast<std::int64_t>(record.event.number));
      insert.Bind(8, std::string(core::KindOf(record.event)));
      insert.Bind(9, EncodeBody(record.event));
      insert.Bind(10, record.text);
      insert.Bind(11, record.detail);
      insert.Bind(12, record.sentence);
      insert.Bind(13, EffectsJson(record.effects));
      PERDURE_RETURN_IF_ERROR(insert.Run());
    }
    return Ok();
  };
  Status status = insert_all();
  if (status.ok()) status = Execute(db_, "COMMIT");
  if (!status.ok()) {
    sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
    return status;
  }
  last_number_ = number;
  return Ok();
}

std::string ToJson(const Record& record) {
  json object;
  object["number"] = record.number;
  object["term"] = record.term;
  object["t"] = SecondsOf(record.event.t);
  object["time"] = TimeOf(record);
  object["event"] = core::KindOf(record.event);
  object["text"] = record.text;
  if (!record.event.node.empty()) object["node"] = record.event.node;
  if (!record.detail.empty()) object["detail"] = record.detail;
  if (!record.sentence.empty()) object["sentence"] = record.sentence;
  if (!record.effects.empty()) object["effects"] = record.effects;
  object["body"] = json::parse(EncodeBody(record.event), nullptr, false);
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string ToText(const Record& record) {
  std::string text = fmt::format("t={:.3f}  {}", SecondsOf(record.event.t), record.text);
  if (!record.detail.empty()) text += fmt::format("\n          -> {}", record.detail);
  if (!record.sentence.empty()) text += fmt::format("\n          \"{}\"", record.sentence);
  return text;
}

}  // namespace perdure::journal
