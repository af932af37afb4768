#include "checkpoint/json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "checkpoint/damage.h"
#include "checkpoint/hash.h"

namespace perdure {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSealBegin = "\"digest\": \"";
constexpr std::string_view kSealEnd = "\"\n}\n";
constexpr std::size_t kDigestDigits = 32;
constexpr std::size_t kSealBytes = kSealBegin.size() + kDigestDigits + kSealEnd.size();

// Builds the value while it is read, and stops at the first thing that is wrong. (The library's own
// parser with a callback looks through all of an object after each member: a header of a hundred
// thousand tensors would take hours.)
class TreeBuilder final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t&) override { return Put(value); }
  bool string(string_t& value) override { return Put(std::move(value)); }
  bool binary(binary_t&) override { return Fail("not JSON"); }  // never, in text
  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    const auto [member, added] = open_.back()->get_ref<Json::object_t&>().try_emplace(name);
    member_ = &member->second;
    return added || Fail(fmt::format("key \"{}\" occurs twice", name));
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    return Fail(fmt::format("not JSON ({})", error.what()));
  }

  Json& value() { return value_; }
  const std::string& problem() const { return problem_; }

 private:
  bool Fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  // Where the next value belongs.
  Json& Place() {
    if (open_.empty()) return value_;
    if (open_.back()->is_object()) return *member_;
    return open_.back()->get_ref<Json::array_t&>().emplace_back();
  }
  template <class Value>
  bool Put(Value&& value) {
    Place() = std::forward<Value>(value);
    return true;
  }
  bool Open(Json container) {
    if (open_.size() >= kJsonDepthMax) return Fail("nested too deeply");
    Json& place = Place();
    place = std::move(container);
    open_.push_back(&place);
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  Json value_;
  std::vector<Json*> open_;  // from the outside in; stable, because only the innermost one grows
  Json* member_ = nullptr;   // of the innermost one, when it is an object
  std::string problem_;
};

// As names mostly are: what stands for itself in a JSON string.
bool IsPlain(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
}

}  // namespace

Result<Json> ParseJson(std::string_view text, const std::string& what) {
  TreeBuilder builder;
  try {
    if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
      return Damaged(what, builder.problem());
    }
  } catch (const Json::exception& error) {
    return Damaged(what, fmt::format("not JSON ({})", error.what()));
  }
  return std::move(builder.value());
}

std::string QuoteJson(std::string_view text) {
  if (IsPlain(text)) {
    std::string quoted;
    quoted.reserve(text.size() + 2);
    quoted += '"';
    quoted += text;
    quoted += '"';
    return quoted;
  }
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool IsUtf8(std::string_view text) {
  if (IsPlain(text)) return true;
  try {
    static_cast<void>(Json(std::string(text)).dump());
  } catch (const Json::exception&) {
    return false;
  }
  return true;
}

std::string FormatShape(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

Result<const Json*> JsonMember(const Json& object, const char* key, Json::value_t type,
                               const std::string& what) {
  if (!object.is_object()) return Damaged(what, "not a JSON object");
  const auto found = object.find(key);
  if (found == object.end()) return Damaged(what, fmt::format("\"{}\" is missing", key));
  if (found->type() != type) return Damaged(what, fmt::format("\"{}\" has the wrong type", key));
  return &*found;
}

Result<std::string> JsonText(const Json& object, const char* key, const std::string& what) {
  PERDURE_ASSIGN_OR_RETURN(const Json* const member,
                           JsonMember(object, key, Json::value_t::string, what));
  return member->get<std::string>();
}

Result<std::int64_t> JsonCount(const Json& object, const char* key, const std::string& what) {
  PERDURE_ASSIGN_OR_RETURN(const Json* const member,
                           JsonMember(object, key, Json::value_t::number_unsigned, what));
  const std::uint64_t count = member->get<std::uint64_t>();
  if (count > static_cast<std::uint64_t>(INT64_MAX)) {
    return Damaged(what, fmt::format("\"{}\" is out of range", key));
  }
  return static_cast<std::int64_t>(count);
}

Result<int> JsonFormatVersion(const nlohmann::json& object, int newest, const std::string& what) {
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t version, JsonCount(object, "format_version", what));
  if (version < 1) return Damaged(what, "its format version is 0");
  if (version <= newest) return static_cast<int>(version);
  return Status(Code::kUnimplemented,
                fmt::format("{}: has format version {}, written by a newer Perdure; this one knows "
                            "versions up to {}: use the newer one",
                            what, version, newest));
}

Result<Shape> JsonShape(const Json& object, const char* key, const std::string& what) {
  PERDURE_ASSIGN_OR_RETURN(const Json* const member,
                           JsonMember(object, key, Json::value_t::array, what));
  Shape shape;
  for (const Json& extent : *member) {
    if (!extent.is_number_unsigned() ||
        extent.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
      return Damaged(what, fmt::format("\"{}\" holds something that is not an extent", key));
    }
    shape.push_back(extent.get<std::int64_t>());
  }
  return shape;
}

std::string SealJson(std::string body) {
  const std::string digest = Digest(body);
  body += kSealBegin;
  body += digest;
  body += kSealEnd;
  return body;
}

Result<std::string> CheckSeal(std::string_view text, const std::string& what) {
  if (text.size() < kSealBytes) return Damaged(what, "too short to be whole");
  const std::string_view body = text.substr(0, text.size() - kSealBytes);
  const std::string_view seal = text.substr(body.size());
  if (seal.substr(0, kSealBegin.size()) != kSealBegin ||
      seal.substr(kSealBegin.size() + kDigestDigits) != kSealEnd) {
    return Damaged(what, "does not end with its digest");
  }
  const std::string stated(seal.substr(kSealBegin.size(), kDigestDigits));
  const std::string found = Digest(body);
  if (stated != found) {
    return Damaged(what, fmt::format("its bytes have digest {}, it says {}", found, stated));
  }
  return stated;
}

}  // namespace perdure
