#include "supervisor/agent/process_tree.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>

#include <unordered_map>

#include "base/parse.h"

namespace perdure::agent {
namespace {

// Longer chains do not exist; a loop, from a table read while pids were reused, must end.
constexpr int kAncestorsMax = 256;

}  // namespace

std::string JobMarker(const std::string& state_directory) {
  return state_directory + ":";
}

std::string NodeMarker(const std::string& state_directory, const std::string& node) {
  return fmt::format("{}:{}:", state_directory, node);
}

std::vector<ProcessStat> FindMarked(const std::string& prefix) {
  std::vector<ProcessStat> found;
  for (ProcessStat& stat : ReadAllStats()) {
    if (!stat.alive()) continue;
    const std::optional<std::string> marker = ReadVariableOf(stat.pid, kMarkerVariable);
    if (marker.has_value() && marker->rfind(prefix, 0) == 0) found.push_back(std::move(stat));
  }
  return found;
}

std::vector<ProcessStat> KillMarked(const std::string& prefix, Deadline deadline) {
  for (;;) {
    std::vector<ProcessStat> found = FindMarked(prefix);
    if (found.empty()) return found;
    for (const ProcessStat& process : found) SignalProcess(process, SIGKILL);
    if (deadline.Passed(RealClock().Now())) return found;
    ::poll(nullptr, 0, 10);
  }
}

std::optional<Generation> ProcessTree::FromMarker(pid_t pid) const {
  const std::optional<std::string> marker = read_marker_(pid);
  if (!marker.has_value() || marker->rfind(prefix_ + "g", 0) != 0) return std::nullopt;
  const std::optional<std::int64_t> number =
      ParseInteger(std::string_view(*marker).substr(prefix_.size() + 1));
  if (!number.has_value()) return std::nullopt;
  return Generation(*number);
}

void ProcessTree::Update(const std::vector<ProcessStat>& all) {
  std::unordered_map<pid_t, const ProcessStat*> by_pid;
  for (const ProcessStat& stat : all) by_pid[stat.pid] = &stat;

  // Rule 2: the nearest known ancestor. `reached_self` says that the chain ends at the agent.
  const auto generation_of = [&](const ProcessStat& stat, bool* reached_self) {
    const ProcessStat* at = &stat;
    for (int i = 0; i < kAncestorsMax; ++i) {
      if (const auto known = known_.find(KeyOf(*at)); known != known_.end()) {
        return std::optional<Generation>(known->second);
      }
      if (at->parent == self_) {
        *reached_self = true;
        break;
      }
      const auto parent = by_pid.find(at->parent);
      if (parent == by_pid.end()) break;
      at = parent->second;
    }
    return std::optional<Generation>();
  };

  alive_.clear();
  strays_.clear();
  std::map<Key, Generation> known;
  std::set<Key> foreign;
  for (const ProcessStat& stat : all) {
    const Key key = KeyOf(stat);
    bool descendant = false;
    std::optional<Generation> generation = generation_of(stat, &descendant);
    if (!generation.has_value() && stat.pid != self_) {
      if (!descendant && foreign_.count(key) != 0) {
        foreign.insert(key);
        continue;
      }
      generation = FromMarker(stat.pid);
    }
    if (generation.has_value()) {
      // Zombies stay known: their children are still to be recognized by them.
      known[key] = *generation;
      if (stat.alive()) alive_[*generation].push_back(stat);
    } else if (descendant) {
      if (stat.alive()) strays_.push_back(stat);
    } else {
      foreign.insert(key);
    }
  }
  known_ = std::move(known);
  foreign_ = std::move(foreign);
  for (auto& [generation, processes] : alive_) {
    processes.insert(processes.end(), strays_.begin(), strays_.end());
  }
}

const std::vector<ProcessStat>& ProcessTree::Of(Generation generation) const {
  const auto found = alive_.find(generation);
  return found == alive_.end() ? strays_ : found->second;
}

std::vector<Generation> ProcessTree::Alive() const {
  std::vector<Generation> generations;
  for (const auto& [generation, processes] : alive_) generations.push_back(generation);
  return generations;
}

}  // namespace perdure::agent
