#include "checkpoint/restore_answer.h"

#include <fmt/format.h>

#include "checkpoint/exchange.h"
#include "checkpoint/json.h"

namespace perdure {

std::string FormatRestoreAnswer(const RestoreAnswer& answer) {
  nlohmann::json json = {
      {"answer", static_cast<int>(answer.kind)}, {"lines", answer.lines}, {"used", answer.used}};
  if (!answer.error.ok()) {
    json["error"] = answer.error.message();
    json["code"] = static_cast<int>(answer.error.code());
  }
  return OneLine(json);
}

Result<RestoreAnswer> ParseRestoreAnswer(const std::string& text) {
  PERDURE_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, "answer"));
  try {
    RestoreAnswer answer;
    answer.kind = static_cast<RestoreAnswer::Kind>(json.at("answer").get<int>());
    answer.error = ErrorIn(json);
    answer.lines = json.at("lines").get<std::vector<std::string>>();
    answer.used = json.at("used").get<std::string>();
    return answer;
  } catch (const nlohmann::json::exception& error) {
    return Status(Code::kInternal, fmt::format("an answer between ranks: {}", error.what()));
  }
}

std::vector<std::string> NamesOf(const Manifest& manifest) {
  std::vector<std::string> names;
  for (const auto& [name, facts] : manifest.tensors) names.push_back(name);
  for (const auto& [name, stored] : manifest.aliases) names.push_back(name);
  for (const auto& [name, bytes] : manifest.blobs) names.push_back(name);
  for (const auto& [part, files] : manifest.foreign) names.push_back(part);
  return names;
}

std::string Bitmap(const std::vector<std::string>& names, const std::set<std::string>& used) {
  std::string hex;
  int nibble = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (used.count(names[i]) != 0) nibble |= 1 << (i % 4);
    if (i % 4 == 3 || i + 1 == names.size()) {
      hex += fmt::format("{:x}", nibble);
      nibble = 0;
    }
  }
  return hex;
}

bool BitOf(const std::string& bitmap, std::size_t i) {
  if (i / 4 >= bitmap.size()) return false;
  const char c = bitmap[i / 4];
  const int nibble = c <= '9' ? c - '0' : c - 'a' + 10;
  return ((nibble >> (i % 4)) & 1) != 0;
}

}  // namespace perdure
