// Reads a YAML map strictly: every key is known, every value has its type and range, and the first
// thing that is wrong becomes one line "file:line: key: what was found; what is allowed".
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "perdure/status.h"

namespace perdure::job {

// The first error wins; later reads go on with defaults.
struct Problems {
  std::string file;
  Status first;
  std::vector<std::string> notes;

  void Add(int line, const std::string& key, const std::string& what);
  void Note(int line, const std::string& key, const std::string& what);
};

// The nearest of `known` by edit distance, when it is near enough to be a slip; else empty.
std::string Nearest(const std::string& word, const std::vector<std::string>& known);

class Section {
 public:
  // An absent section (undefined node) reads as empty. `name` is the path so far: "launch".
  Section(Problems& problems, YAML::Node node, std::string name, int line);

  bool present() const { return present_; }
  bool Has(const std::string& key);
  // Line of a key that is present, else of the section.
  int LineOf(const std::string& key) const;
  std::string PathOf(const std::string& key) const;

  std::optional<std::string> Text(const std::string& key);
  std::optional<std::int64_t> Integer(const std::string& key, std::int64_t least, std::int64_t most,
                                      const std::string& why = "");
  std::optional<double> Number(const std::string& key, double least, double most,
                               const std::string& unit);
  std::optional<bool> Boolean(const std::string& key);
  std::optional<std::string> OneOf(const std::string& key, const std::vector<std::string>& allowed);
  std::optional<std::vector<std::string>> Texts(const std::string& key);
  // Scalars by name, in the order of the file.
  std::vector<std::pair<std::string, std::string>> Pairs(const std::string& key,
                                                         std::vector<int>* lines = nullptr);
  Section Sub(const std::string& key);

  // Known and without effect yet: noted.
  void NoEffectYet(const std::string& key);
  // Known and not there yet: refused with what to do instead.
  void NotThereYet(const std::string& key, const std::string& instead);
  void Wrong(const std::string& key, const std::string& what);

  // After all reads: whatever was not asked for is unknown.
  void Finish();

 private:
  struct Entry {
    YAML::Node value;
    int line = 0;
  };
  const Entry* Take(const std::string& key);
  const Entry* Scalar(const std::string& key, const std::string& expected);

  Problems& problems_;
  std::string name_;
  int line_;
  bool present_ = false;
  std::map<std::string, Entry> entries_;
  std::vector<std::string> asked_;
};

}  // namespace perdure::job
