#include "supervisor/job/yaml_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/parse.h"

namespace perdure::job {
namespace {

// What a node is, in words: for "found …".
std::string Found(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Scalar:
      return fmt::format("\"{}\"", node.Scalar());
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Map:
      return "a map";
    default:
      return "nothing";
  }
}

std::size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

std::optional<double> ToNumber(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

void Problems::Add(int line, const std::string& key, const std::string& what) {
  if (!first.ok()) return;
  first = Status(Code::kInvalidArgument, fmt::format("{}:{}: {}: {}", file, line, key, what));
}

void Problems::Note(int line, const std::string& key, const std::string& what) {
  notes.push_back(fmt::format("{}:{}: {}: {}", file, line, key, what));
}

std::string Nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = word.size() / 3 + 2;  // a slip, not another word
  for (const std::string& candidate : known) {
    const std::size_t distance = EditDistance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

Section::Section(Problems& problems, YAML::Node node, std::string name, int line)
    : problems_(problems), name_(std::move(name)), line_(line) {
  if (!node.IsDefined() || node.IsNull()) return;
  if (!node.IsMap()) {
    problems_.Add(line, name_, fmt::format("found {}; expected a map of keys", Found(node)));
    return;
  }
  present_ = true;
  for (const auto& pair : node) {
    const int at = pair.first.Mark().line + 1;
    if (!pair.first.IsScalar()) {
      problems_.Add(at, name_, "found a key that is not a word");
      continue;
    }
    const std::string key = pair.first.Scalar();
    if (!entries_.emplace(key, Entry{pair.second, at}).second) {
      problems_.Add(at, PathOf(key),
                    fmt::format("is given twice; the first is in line {}", entries_.at(key).line));
    }
  }
}

bool Section::Has(const std::string& key) {
  const auto found = entries_.find(key);
  return found != entries_.end() && !found->second.value.IsNull();
}

int Section::LineOf(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? line_ : found->second.line;
}

std::string Section::PathOf(const std::string& key) const {
  // Everything lies under training_job; saying so each time tells nobody anything.
  return name_.empty() || name_ == "training_job" ? key : name_ + "." + key;
}

const Section::Entry* Section::Take(const std::string& key) {
  asked_.push_back(key);
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.value.IsNull()) return nullptr;
  return &found->second;
}

const Section::Entry* Section::Scalar(const std::string& key, const std::string& expected) {
  const Entry* entry = Take(key);
  if (entry == nullptr) return nullptr;
  if (!entry->value.IsScalar()) {
    problems_.Add(entry->line, PathOf(key),
                  fmt::format("found {}; expected {}", Found(entry->value), expected));
    return nullptr;
  }
  return entry;
}

std::optional<std::string> Section::Text(const std::string& key) {
  const Entry* entry = Scalar(key, "a text");
  if (entry == nullptr) return std::nullopt;
  if (entry->value.Scalar().empty()) {
    problems_.Add(entry->line, PathOf(key), "is empty; expected a text");
    return std::nullopt;
  }
  return entry->value.Scalar();
}

std::optional<std::int64_t> Section::Integer(const std::string& key, std::int64_t least,
                                             std::int64_t most, const std::string& why) {
  const std::string expected =
      most == std::numeric_limits<std::int64_t>::max()
          ? fmt::format("a whole number, at least {}{}", least, why)
          : fmt::format("a whole number from {} to {}{}", least, most, why);
  const Entry* entry = Scalar(key, expected);
  if (entry == nullptr) return std::nullopt;
  const std::string& text = entry->value.Scalar();
  const std::optional<std::int64_t> value = ParseInteger(text);
  if (!value.has_value() || *value < least || *value > most) {
    problems_.Add(entry->line, PathOf(key),
                  fmt::format("found {}; expected {}", Found(entry->value), expected));
    return std::nullopt;
  }
  return value;
}

std::optional<double> Section::Number(const std::string& key, double least, double most,
                                      const std::string& unit) {
  const std::string expected = fmt::format("{} from {:g} to {:g}", unit, least, most);
  const Entry* entry = Scalar(key, expected);
  if (entry == nullptr) return std::nullopt;
  const std::optional<double> value = ToNumber(entry->value.Scalar());
  if (!value.has_value() || *value < least || *value > most) {
    problems_.Add(entry->line, PathOf(key),
                  fmt::format("found {}; expected {}", Found(entry->value), expected));
    return std::nullopt;
  }
  return value;
}

std::optional<bool> Section::Boolean(const std::string& key) {
  const Entry* entry = Scalar(key, "true or false");
  if (entry == nullptr) return std::nullopt;
  if (entry->value.Scalar() == "true") return true;
  if (entry->value.Scalar() == "false") return false;
  problems_.Add(entry->line, PathOf(key),
                fmt::format("found {}; expected true or false", Found(entry->value)));
  return std::nullopt;
}

std::optional<std::string> Section::OneOf(const std::string& key,
                                          const std::vector<std::string>& allowed) {
  const std::string expected = fmt::format("one of {}", fmt::join(allowed, ", "));
  const Entry* entry = Scalar(key, expected);
  if (entry == nullptr) return std::nullopt;
  const std::string& value = entry->value.Scalar();
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return value;
  const std::string nearest = Nearest(value, allowed);
  problems_.Add(entry->line, PathOf(key),
                fmt::format("found \"{}\"; expected {}{}", value, expected,
                            nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest)));
  return std::nullopt;
}

std::optional<std::vector<std::string>> Section::Texts(const std::string& key) {
  const Entry* entry = Take(key);
  if (entry == nullptr) return std::nullopt;
  std::vector<std::string> texts;
  bool good = entry->value.IsSequence() && entry->value.size() > 0;
  if (good) {
    for (const auto& item : entry->value) {
      good = good && item.IsScalar();
      if (good) texts.push_back(item.Scalar());
    }
  }
  if (!good) {
    problems_.Add(entry->line, PathOf(key),
                  fmt::format("found {}; expected a list of texts, as in [a, b, \"3\"]",
                              entry->value.IsSequence() ? "a list with something else in it, or "
                                                          "an empty one"
                                                        : Found(entry->value)));
    return std::nullopt;
  }
  return texts;
}

std::vector<std::pair<std::string, std::string>> Section::Pairs(const std::string& key,
                                                                std::vector<int>* lines) {
  std::vector<std::pair<std::string, std::string>> pairs;
  const Entry* entry = Take(key);
  if (entry == nullptr) return pairs;
  if (!entry->value.IsMap()) {
    problems_.Add(
        entry->line, PathOf(key),
        fmt::format("found {}; expected a map, as in {{name: value}}", Found(entry->value)));
    return pairs;
  }
  for (const auto& pair : entry->value) {
    const int line = pair.first.Mark().line + 1;
    if (!pair.first.IsScalar() || !pair.second.IsScalar()) {
      const std::string name = pair.first.IsScalar() ? pair.first.Scalar() : "?";
      problems_.Add(line, PathOf(key) + "." + name,
                    fmt::format("found {}; expected one value", Found(pair.second)));
      continue;
    }
    for (const auto& earlier : pairs) {
      if (earlier.first == pair.first.Scalar()) {
        problems_.Add(line, PathOf(key) + "." + earlier.first, "is given twice");
      }
    }
    pairs.emplace_back(pair.first.Scalar(), pair.second.Scalar());
    if (lines != nullptr) lines->push_back(line);
  }
  return pairs;
}

Section Section::Sub(const std::string& key) {
  const Entry* entry = Take(key);
  return Section(problems_, entry == nullptr ? YAML::Node(YAML::NodeType::Undefined) : entry->value,
                 PathOf(key), LineOf(key));
}

void Section::NoEffectYet(const std::string& key) {
  if (Take(key) == nullptr) return;
  problems_.Note(LineOf(key), PathOf(key), "is planned and not there yet; it has no effect");
}

void Section::NotThereYet(const std::string& key, const std::string& instead) {
  if (Take(key) == nullptr) return;
  problems_.Add(LineOf(key), PathOf(key), "is planned and not there yet; " + instead);
}

void Section::Wrong(const std::string& key, const std::string& what) {
  problems_.Add(LineOf(key), PathOf(key), what);
}

void Section::Finish() {
  for (const auto& [key, entry] : entries_) {
    if (std::find(asked_.begin(), asked_.end(), key) != asked_.end()) continue;
    const std::string nearest = Nearest(key, asked_);
    problems_.Add(entry.line, PathOf(key),
                  nearest.empty()
                      ? fmt::format("unknown key; allowed here: {}", fmt::join(asked_, ", "))
                      : fmt::format("unknown key; did you mean {}? (allowed here: {})", nearest,
                                    fmt::join(asked_, ", ")));
  }
}

}  // namespace perdure::job
