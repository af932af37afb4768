#include "house/include_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <regex>
#include <sstream>
#include <utility>

namespace perdure::house {
namespace {

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool EndsWith(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

// `at` is the R of a raw string literal; blanks its inside and returns where it ends.
std::size_t SkipRawString(std::string_view text, std::size_t at, std::string* out) {
  const std::size_t open = text.find('(', at);
  if (open == std::string_view::npos) return at;
  const std::string close = ")" + std::string(text.substr(at + 2, open - at - 2)) + "\"";
  const std::size_t end = std::min(text.find(close, open), text.size());
  for (std::size_t i = open + 1; i < end; ++i) {
    if ((*out)[i] != '\n') (*out)[i] = ' ';
  }
  return std::min(end + close.size(), text.size()) - 1;
}

// Blanks comments and the insides of string and character literals, keeping the lines, so that
// prose about getenv() is no use of it. Include lines keep their quotes.
std::string WithoutCommentsAndStrings(std::string_view text) {
  enum class In { kCode, kLine, kBlock, kString, kChar };
  std::string out(text);
  In in = In::kCode;
  bool include_line = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (c == '\n') {
      if (in != In::kBlock) in = In::kCode;
      include_line = false;
      continue;
    }
    switch (in) {
      case In::kCode:
        if (c == '#') include_line = text.substr(i).find("include") < 4;
        if (c == '/' && next == '/') {
          in = In::kLine;
          out[i] = ' ';
        } else if (c == '/' && next == '*') {
          in = In::kBlock;
          out[i] = out[i + 1] = ' ';
          ++i;
        } else if (c == 'R' && next == '"') {
          i = SkipRawString(text, i, &out);
        } else if (c == '"' && !include_line) {
          in = In::kString;
        } else if (c == '\'' &&
                   (i == 0 || !std::isalnum(static_cast<unsigned char>(text[i - 1])))) {
          in = In::kChar;  // not the separator of 1'000
        }
        break;
      case In::kLine:
        out[i] = ' ';
        break;
      case In::kBlock:
        out[i] = ' ';
        if (c == '*' && next == '/') {
          out[++i] = ' ';
          in = In::kCode;
        }
        break;
      case In::kString:
      case In::kChar:
        if (c == '\\') {
          out[i] = ' ';
          if (next != '\0' && next != '\n') out[++i] = ' ';
        } else if (c == (in == In::kString ? '"' : '\'')) {
          in = In::kCode;
        } else {
          out[i] = ' ';
        }
        break;
    }
  }
  return out;
}

struct Include {
  int line = 0;
  bool angled = false;
  std::string header;
};

std::vector<Include> IncludesOf(const std::string& code) {
  static const std::regex pattern(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  std::vector<Include> includes;
  std::istringstream lines(code);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (std::regex_search(line, match, pattern)) {
      includes.push_back({number, match[1] == "<", match[2]});
    }
  }
  return includes;
}

bool IsStandard(const Include& include) {
  return include.angled && include.header.find_first_of("/.") == std::string::npos;
}

bool IsPublic(const Include& include) {
  return !include.angled && StartsWith(include.header, "perdure/");
}

bool IsRpc(const Include& include) {
  const std::string& h = include.header;
  return StartsWith(h, "google/") || StartsWith(h, "grpc") || StartsWith(h, "absl/") ||
         EndsWith(h, ".pb.h");
}

bool IsTorch(const Include& include) {
  const std::string& h = include.header;
  return StartsWith(h, "torch/") || StartsWith(h, "ATen/") || StartsWith(h, "c10/") ||
         h == "perdure/torch.h";
}

// The declared room whose folder holds `path_in_src`; the longest, since "supervisor/core" lies in
// "supervisor". Empty when there is none.
std::string RoomOf(const Rules& rules, std::string_view path_in_src) {
  std::string room;
  for (const auto& [name, reach] : rules.reach) {
    if (StartsWith(path_in_src, name + "/") && name.size() > room.size()) room = name;
  }
  return room;
}

std::vector<std::string> CheckSource(const Rules& rules, std::string_view path,
                                     const std::string& code) {
  const std::string_view in_src = path.substr(std::string_view("src/").size());
  const std::string room = RoomOf(rules, in_src);
  if (room.empty()) {
    if (rules.partial) return {};
    return {
        fmt::format("{}:1: lies in no room; declare one with perdure_room in "
                    "src/CMakeLists.txt",
                    path)};
  }
  std::vector<std::string> complaints;
  const std::set<std::string>& reach = rules.reach.at(room);
  for (const Include& include : IncludesOf(code)) {
    const auto complain = [&](std::string_view what) {
      complaints.push_back(fmt::format("{}:{}: room {} includes {}: {}", path, include.line, room,
                                       include.header, what));
    };
    if (IsRpc(include)) {
      if (room != "wire") complain("only wire knows protobuf and gRPC");
    } else if (IsTorch(include)) {
      if (room != "torch") complain("only torch knows libtorch");
    } else if (!include.angled && !IsPublic(include)) {
      const std::string target = RoomOf(rules, include.header);
      if (target.empty()) {
        complain("that is a header of no declared room (quotes are for our own, from src/)");
      } else if (reach.count(target) == 0) {
        complain(fmt::format("there is no arrow to {}; it may include {}", target,
                             fmt::join(reach, " ")));
      }
    }
  }
  return complaints;
}

std::vector<std::string> CheckRawCalls(const Rules& rules, std::string_view path,
                                       const std::string& code) {
  const std::string room = RoomOf(rules, path.substr(std::string_view("src/").size()));
  if (room == "base" || room == "cli") return {};
  static const std::regex pattern(
      R"(\b(system_clock|steady_clock|high_resolution_clock)\s*::\s*now\b)"
      R"(|\b(clock_gettime|gettimeofday|getenv|secure_getenv|random_device)\b)"
      R"(|\b(sleep_for|sleep_until|usleep|nanosleep|srand|rand|getrandom)\s*\()"
      R"(|(^|[^\w.>:])(sleep|time)\s*\(\s*(\d+|nullptr|NULL)\s*\))");
  std::vector<std::string> complaints;
  std::istringstream lines(code);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (std::regex_search(line, match, pattern)) {
      complaints.push_back(
          fmt::format("{}:{}: {} is raw; time, chance and the environment come from base, through "
                      "the constructor",
                      path, number, match.str()));
    }
  }
  return complaints;
}

std::vector<std::string> CheckPublicHeader(std::string_view path, const std::string& code) {
  const bool torch = EndsWith(path, "perdure/torch.h");
  std::vector<std::string> complaints;
  for (const Include& include : IncludesOf(code)) {
    if (IsStandard(include)) continue;
    if (torch && IsTorch(include)) continue;
    if (IsPublic(include) && include.header != "perdure/torch.h") continue;
    complaints.push_back(
        fmt::format("{}:{}: a public header includes {}: only the standard library and public "
                    "headers are allowed",
                    path, include.line, include.header));
  }
  return complaints;
}

std::vector<std::string> CheckExample(std::string_view path, const std::string& code) {
  std::vector<std::string> complaints;
  for (const Include& include : IncludesOf(code)) {
    if (IsPublic(include) || IsTorch(include)) continue;
    // POSIX headers are a user's business; ours and our libraries' are not in an example.
    if (include.angled && !IsRpc(include) && !StartsWith(include.header, "fmt/") &&
        !StartsWith(include.header, "spdlog/")) {
      continue;
    }
    complaints.push_back(fmt::format(
        "{}:{}: an example includes {}: examples use what is installed and nothing else", path,
        include.line, include.header));
  }
  return complaints;
}

}  // namespace

Rules ParseRules(std::string_view text, std::vector<std::string>* complaints) {
  Rules rules;
  std::map<std::string, std::set<std::string>> arrows;
  std::istringstream lines{std::string(text)};
  std::string line;
  while (std::getline(lines, line)) {
    if (line.empty()) continue;
    if (line == "partial") {
      rules.partial = true;
      continue;
    }
    const std::size_t colon = line.find(':');
    std::set<std::string>& deps = arrows[line.substr(0, colon)];
    std::istringstream names(colon == std::string::npos ? "" : line.substr(colon + 1));
    std::string name;
    while (std::getline(names, name, ',')) deps.insert(name);
  }
  for (const auto& [room, deps] : arrows) {
    for (const std::string& dep : deps) {
      if (arrows.count(dep) == 0) {
        complaints->push_back(fmt::format("room {} points to {}, which is no room", room, dep));
      }
    }
  }
  for (const auto& [room, deps] : arrows) {
    std::set<std::string>& reach = rules.reach[room];
    std::vector<std::string> pending(deps.begin(), deps.end());
    while (!pending.empty()) {
      const std::string next = std::move(pending.back());
      pending.pop_back();
      if (!reach.insert(next).second) continue;
      const auto found = arrows.find(next);
      if (found != arrows.end()) {
        pending.insert(pending.end(), found->second.begin(), found->second.end());
      }
    }
    if (reach.count(room) != 0) {
      complaints->push_back(fmt::format("room {} lies on a cycle of arrows", room));
    }
    reach.insert(room);
    reach.insert("base");
  }
  return rules;
}

std::vector<std::string> Check(const Rules& rules, std::string_view path, std::string_view text) {
  const std::string code = WithoutCommentsAndStrings(text);
  if (StartsWith(path, "include/perdure/")) return CheckPublicHeader(path, code);
  if (StartsWith(path, "examples/")) return CheckExample(path, code);
  if (!StartsWith(path, "src/")) return {};
  std::vector<std::string> complaints = CheckSource(rules, path, code);
  std::vector<std::string> raw = CheckRawCalls(rules, path, code);
  complaints.insert(complaints.end(), raw.begin(), raw.end());
  return complaints;
}

std::vector<std::string> TypesIn(std::string_view text) {
  // As clang-format leaves it: what stands in a namespace begins in the first column.
  static const std::regex opens(R"(^namespace ?([\w:]*) ?\{)");
  static const std::regex closes(R"(^\}  // namespace)");
  static const std::regex type(
      R"(^(?:struct|class|enum class) (?:PERDURE_\w+(?:\("[^"]*"\))? )?(\w+)(?!\w|::)[^;]*$)");
  std::vector<std::string> types;
  std::vector<std::string> scopes;
  std::istringstream lines{std::string(text)};
  std::string line;
  while (std::getline(lines, line)) {
    std::smatch match;
    if (std::regex_search(line, match, opens)) {
      scopes.push_back(match[1]);
    } else if (std::regex_search(line, closes)) {
      if (!scopes.empty()) scopes.pop_back();
    } else if (!scopes.empty() && std::find(scopes.begin(), scopes.end(), "") == scopes.end() &&
               std::regex_search(line, match, type)) {
      types.push_back(fmt::format("{}::{}", fmt::join(scopes, "::"), match[1].str()));
    }
  }
  return types;
}

}  // namespace perdure::house
