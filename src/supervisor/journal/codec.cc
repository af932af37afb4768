#include "supervisor/journal/codec.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace perdure::journal {
namespace {

using nlohmann::json;

// The fields of each word are named once, in Visit(archive, word); an archive either writes or
// reads them.

template <class T>
json Write(const T& value);
template <class T>
void Read(const json& from, T& value);

struct JsonWriter {
  json& to;
  template <class T>
  void operator()(const char* name, const T& value) {
    to[name] = Write(value);
  }
};

struct JsonReader {
  const json& from;
  template <class T>
  void operator()(const char* name, T& value) {
    const auto found = from.find(name);
    if (found != from.end()) Read(*found, value);
  }
};

// Visit takes `Word&` or `const Word&`: W is the word, perhaps const.
#define PERDURE_WORD(Type)    \
  template <class A, class W, \
            std::enable_if_t<std::is_same_v<std::remove_const_t<W>, Type>, int> = 0>

PERDURE_WORD(core::SupervisorStarted)
void Visit(A& a, W& w) {
  a("term", w.term);
  a("wall_epoch_ms", w.wall_epoch_ms);
  a("highest_claim", w.highest_claim);
}
PERDURE_WORD(RunningRank)
void Visit(A& a, W& w) {
  a("generation", w.generation);
  a("rank", w.rank);
  a("pid", w.pid);
}
PERDURE_WORD(AgentHello)
void Visit(A& a, W& w) {
  // Not the token: a journal is read by people.
  a("job", w.job);
  a("node", w.node);
  a("labels", w.labels);
  a("capacity", w.capacity);
  a("agent_pid", w.agent_pid);
  a("incarnation", w.incarnation);
  a("running", w.running);
}
PERDURE_WORD(RankLeaving)
void Visit(A& a, W& w) {
  a("code", w.code);
  a("message", w.message);
  a("durable", w.durable);
}
PERDURE_WORD(RankExited)
void Visit(A& a, W& w) {
  a("generation", w.generation);
  a("rank", w.rank);
  a("exit_code", w.exit_code);
  a("signal", w.signal);
  a("leaving", w.leaving);
  a("lifetime_seconds", w.lifetime_seconds);
  a("last_error_line", w.last_error_line);
}
PERDURE_WORD(RankStartFailed)
void Visit(A& a, W& w) {
  a("generation", w.generation);
  a("rank", w.rank);
  a("reason", w.reason);
}
PERDURE_WORD(GenerationEnded)
void Visit(A& a, W& w) {
  a("generation", w.generation);
  a("unkillable", w.unkillable);
}
PERDURE_WORD(core::EvidenceStored)
void Visit(A& a, W& w) {
  a("generation", w.generation);
  a("files", w.files);
}
PERDURE_WORD(StoreReady)
void Visit(A& a, W& w) {
  a("address", w.address);
}
PERDURE_WORD(RestoreDone)
void Visit(A& a, W& w) {
  a("fresh", w.fresh);
  a("step", w.step);
  a("from_generation", w.from_generation);
  a("passed_over", w.passed_over);
}
PERDURE_WORD(CheckpointCommitted)
void Visit(A& a, W& w) {
  a("step", w.step);
  a("generation", w.generation);
  a("attempt", w.attempt);
  a("bytes", w.bytes);
  a("seconds", w.seconds);
  a("age_seconds", w.age_seconds);
}
PERDURE_WORD(CheckpointFailed)
void Visit(A& a, W& w) {
  a("step", w.step);
  a("reason", w.reason);
  a("in_a_row", w.in_a_row);
}
PERDURE_WORD(CheckpointSkipped)
void Visit(A& a, W& w) {
  a("step", w.step);
  a("reason", w.reason);
  a("skipped", w.skipped);
}
PERDURE_WORD(CommFailure::Suspect)
void Visit(A& a, W& w) {
  a("rank", w.rank);
  a("evidence", w.evidence);
}
PERDURE_WORD(CommFailure)
void Visit(A& a, W& w) {
  a("class", w.failure_class);
  a("communicator", w.communicator);
  a("sequence", w.sequence);
  a("operation", w.operation);
  a("bytes_done", w.bytes_done);
  a("suspects", w.suspects);
}
PERDURE_WORD(CommFailed)
void Visit(A& a, W& w) {
  a("failure", w.failure);
  a("message", w.message);
}
template <class A, class M>
void Visit(A& a, FromRank<M>& w) {
  a("generation", w.generation);
  a("rank", w.rank);
  a("message", w.message);
}
template <class A, class M>
void Visit(A& a, const FromRank<M>& w) {
  a("generation", w.generation);
  a("rank", w.rank);
  a("message", w.message);
}
PERDURE_WORD(core::StopRequested)
void Visit(A& a, W& w) {
  a("reason", w.reason);
  a("signal", w.signal);
}
PERDURE_WORD(ChaosRequest)
void Visit(A& a, W& w) {
  a("target", w.target);
  a("rank", w.rank);
  a("node", w.node);
  a("signal", w.signal);
  a("at_step", w.at_step);
}
PERDURE_WORD(core::ChaosRequested)
void Visit(A& a, W& w) {
  a("request", w.request);
}
PERDURE_WORD(core::ClaimsSeen)
void Visit(A& a, W& w) {
  a("highest", w.highest);
}
PERDURE_WORD(core::JobClosed)
void Visit(A&, W&) {}
PERDURE_WORD(core::Due)
void Visit(A& a, W& w) {
  a("timer", w.timer);
}
PERDURE_WORD(core::NodesLost)
void Visit(A& a, W& w) {
  a("nodes", w.nodes);
  a("silent_seconds", w.silent_seconds);
}
PERDURE_WORD(core::Suspected)
void Visit(A& a, W& w) {
  a("generation", w.generation);
  a("rank", w.rank);
  a("sentence", w.sentence);
}
PERDURE_WORD(core::Stalled)
void Visit(A& a, W& w) {
  a("generation", w.generation);
  a("rank", w.rank);
  a("sentence", w.sentence);
}
PERDURE_WORD(core::Verdict)
void Visit(A& a, W& w) {
  a("generation", w.generation);
  a("rank", w.rank);
  a("node", w.node);
  a("class", w.failure_class);
  a("sentence", w.sentence);
  a("last_progress", w.last_progress);
}
PERDURE_WORD(TimeSpent)
void Visit(A& a, W& w) {
  a("compute", w.compute);
  a("communication", w.communication);
  a("data", w.data);
  a("checkpoint", w.checkpoint);
  a("init", w.init);
  a("restore", w.restore);
  a("eval", w.eval);
  a("other", w.other);
}
PERDURE_WORD(core::Progress)
void Visit(A& a, W& w) {
  a("generation", w.generation);
  a("restoring", w.restoring);
  a("completed", w.completed);
  a("opened", w.opened);
  a("first_step", w.first_step);
  a("last_completed", w.last_completed);
  a("spent", w.spent);
  a("median_step_seconds", w.median_step_seconds);
  a("samples", w.samples);
  a("loss", w.loss);
}
PERDURE_WORD(core::DrillDue)
void Visit(A& a, W& w) {
  a("id", w.id);
}
PERDURE_WORD(CheckpointSettings)
void Visit(A& a, W& w) {
  a("directory", w.directory);
  a("interval_steps", w.interval_steps);
  a("async_save", w.async_save);
  a("keep_last_n", w.keep_last_n);
  a("stop_after", w.stop_after);
  a("staging_bytes_max", w.staging_bytes_max);
  a("when_busy", w.when_busy);
  a("keep_every_steps", w.keep_every_steps);
  a("interval_auto", w.interval_auto);
  a("max_lost_ms", w.max_lost_ms);
  a("init_from", w.init_from);
  a("init_names", w.init_names);
}
PERDURE_WORD(core::Policy)
void Visit(A& a, W& w) {
  a("job", w.job);
  a("job_file", w.job_file);
  a("nodes", w.nodes);
  a("spares", w.spares);
  a("ranks_per_node", w.ranks_per_node);
  a("checkpoints", w.checkpoints);
  a("resume", w.resume);
  a("command", w.command);
  a("env", w.env);
  a("working_directory", w.working_directory);
  a("checkpoint_settings", w.checkpoint_settings);
  a("rank_report_interval", w.rank_report_interval);
  a("agent_report_interval", w.agent_report_interval);
  a("suspected", w.suspected);
  a("node_silent", w.node_silent);
  a("lease", w.lease);
  a("collective", w.collective);
  a("init", w.init);
  a("restore", w.restore);
  a("checkpoint", w.checkpoint);
  a("other_phase", w.other_phase);
  a("step_given", w.step_given);
  a("step_factor", w.step_factor);
  a("step_floor", w.step_floor);
  a("step_ceiling", w.step_ceiling);
  a("warm_steps", w.warm_steps);
  a("evidence", w.evidence);
  a("stop_grace", w.stop_grace);
  a("stop_margin", w.stop_margin);
  a("preemption_grace", w.preemption_grace);
  a("agents_awaited", w.agents_awaited);
  a("inquest", w.inquest);
  a("spares_awaited", w.spares_awaited);
  a("pause_noticed", w.pause_noticed);
  a("max_auto_restart", w.max_auto_restart);
  a("refill_after", w.refill_after);
  a("max_no_progress_restarts", w.max_no_progress_restarts);
  a("backoff_first", w.backoff_first);
  a("backoff_most", w.backoff_most);
  a("instant", w.instant);
  a("auto_isolate_bad_node", w.auto_isolate_bad_node);
  a("isolate_after", w.isolate_after);
  a("blame_window", w.blame_window);
  a("isolation_first", w.isolation_first);
  a("isolation_most", w.isolation_most);
  a("isolated_share_most", w.isolated_share_most);
}
#undef PERDURE_WORD

// ------------------------------------------------------------------- values

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};
template <class T>
struct IsPair : std::false_type {};
template <class A, class B>
struct IsPair<std::pair<A, B>> : std::true_type {};
template <class T>
struct IsStrongId : std::false_type {};
template <class Tag>
struct IsStrongId<StrongId<Tag>> : std::true_type {};

template <class T>
json Write(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return static_cast<std::int64_t>(value);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string> ||
                       std::is_same_v<T, std::map<std::string, std::string>>) {
    return value;
  } else if constexpr (std::is_same_v<T, Duration>) {
    return value.count();
  } else if constexpr (IsStrongId<T>::value) {
    return value.value();
  } else if constexpr (IsOptional<T>::value) {
    return value.has_value() ? Write(*value) : json();
  } else if constexpr (IsPair<T>::value) {
    return json::array({Write(value.first), Write(value.second)});
  } else if constexpr (IsVector<T>::value) {
    json list = json::array();
    for (const auto& item : value) list.push_back(Write(item));
    return list;
  } else {
    json object = json::object();
    JsonWriter writer{object};
    Visit(writer, value);
    return object;
  }
}

template <class T>
void Read(const json& from, T& value) {
  if constexpr (std::is_enum_v<T>) {
    value = static_cast<T>(from.get<std::int64_t>());
  } else if constexpr (std::is_same_v<T, double>) {
    if (from.is_null()) {
      value = 0;  // JSON has no NaN or infinity
    } else {
      value = from.get<double>();
    }
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string> ||
                       std::is_same_v<T, std::map<std::string, std::string>>) {
    value = from.get<T>();
  } else if constexpr (std::is_same_v<T, Duration>) {
    value = Duration(from.get<std::int64_t>());
  } else if constexpr (IsStrongId<T>::value) {
    value = T(from.get<std::int64_t>());
  } else if constexpr (IsOptional<T>::value) {
    value.reset();
    if (!from.is_null()) Read(from, value.emplace());
  } else if constexpr (IsPair<T>::value) {
    Read(from.at(0), value.first);
    Read(from.at(1), value.second);
  } else if constexpr (IsVector<T>::value) {
    value.clear();
    for (const json& item : from) Read(item, value.emplace_back());
  } else {
    JsonReader reader{from};
    Visit(reader, value);
  }
}

std::string Dump(const json& value) {
  // Messages of user programs may hold any bytes.
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Makes the body whose kind is `kind`, trying each alternative in turn.
template <std::size_t I = 0>
bool MakeBody(std::string_view kind, core::Event& event) {
  if constexpr (I < std::variant_size_v<core::EventBody>) {
    event.body.emplace<I>();
    if (core::KindOf(event) == kind) return true;
    return MakeBody<I + 1>(kind, event);
  } else {
    return false;
  }
}

}  // namespace

std::string EncodeBody(const core::Event& event) {
  return std::visit(
      [](const auto& body) -> std::string {
        using Body = std::decay_t<decltype(body)>;
        if constexpr (std::is_same_v<Body, NodeReport> ||
                      std::is_same_v<Body, core::NodeDisconnected> ||
                      std::is_same_v<Body, core::Tick>) {
          return "{}";  // never journalled
        } else {
          return Dump(Write(body));
        }
      },
      event.body);
}

Status DecodeBody(std::string_view kind, std::string_view text, core::Event& event) {
  if (!MakeBody(kind, event) || !core::IsJournalled(event)) {
    return Status(Code::kDataLoss,
                  fmt::format("the journal holds an event of unknown kind {}", kind));
  }
  try {
    const json from = json::parse(text);
    std::visit(
        [&](auto& body) {
          using Body = std::decay_t<decltype(body)>;
          if constexpr (!std::is_same_v<Body, NodeReport> &&
                        !std::is_same_v<Body, core::NodeDisconnected> &&
                        !std::is_same_v<Body, core::Tick>) {
            Read(from, body);
          }
        },
        event.body);
  } catch (const json::exception& error) {
    return Status(Code::kDataLoss,
                  fmt::format("the journal's {} cannot be read: {}", kind, error.what()));
  }
  return Ok();
}

std::string EncodePolicy(const core::Policy& policy) {
  return Dump(Write(policy));
}

Result<core::Policy> DecodePolicy(std::string_view text) {
  try {
    core::Policy policy;
    Read(json::parse(text), policy);
    return policy;
  } catch (const json::exception& error) {
    return Status(Code::kDataLoss,
                  fmt::format("the journal's policy cannot be read: {}", error.what()));
  }
}

}  // namespace perdure::journal
