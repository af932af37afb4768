// Which processes of this machine belong to which generation: every process that a rank started,
// however it tried to get away, and no other.
//
//  1. The agent is a child subreaper (PR_SET_CHILD_SUBREAPER), so an orphan of a rank becomes the
//     agent's child: whoever descends from the agent is ours.
//  2. A descendant belongs to the generation of the nearest ancestor that is known; what was known
//     once stays known under (pid, start time), also when its parent is gone.
//  3. A descendant that reached the agent before anybody looked is known by the marker in its
//     environment (PERDURE_MARKER, "STATE_DIRECTORY:NODE:gN").
//  4. One without the marker is a stray: it belongs to every generation that is being ended.
//  5. A process elsewhere with this node's marker was left by an earlier agent, which was killed.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "perdure/ids.h"
#include "supervisor/agent/proc.h"

namespace perdure::agent {

inline constexpr const char* kMarkerVariable = "PERDURE_MARKER";

// "STATE_DIRECTORY:" and "STATE_DIRECTORY:NODE:": what every marker of a job, of a node begins
// with.
std::string JobMarker(const std::string& state_directory);
std::string NodeMarker(const std::string& state_directory, const std::string& node);

// All processes whose marker begins so, zombies left out; for cleaning up after an agent that is
// gone.
std::vector<ProcessStat> FindMarked(const std::string& prefix);

// Kills what FindMarked finds until there is nothing, or the deadline; returns what is left.
std::vector<ProcessStat> KillMarked(const std::string& prefix, Deadline deadline);

class ProcessTree {
 public:
  // Reads PERDURE_MARKER of a process.
  using ReadMarker = std::function<std::optional<std::string>(pid_t)>;

  ProcessTree(pid_t self, std::string marker_prefix, ReadMarker read_marker)
      : self_(self), prefix_(std::move(marker_prefix)), read_marker_(std::move(read_marker)) {}

  void AddRoot(const ProcessStat& root, Generation generation) { known_[KeyOf(root)] = generation; }

  // Takes a new look. `all` is every process of the machine.
  void Update(const std::vector<ProcessStat>& all);

  // As of the last look: alive, and of this generation or stray.
  const std::vector<ProcessStat>& Of(Generation generation) const;
  // Generations with anything alive.
  std::vector<Generation> Alive() const;

 private:
  using Key = std::pair<pid_t, std::uint64_t>;
  static Key KeyOf(const ProcessStat& stat) { return {stat.pid, stat.start_ticks}; }
  std::optional<Generation> FromMarker(pid_t pid) const;

  const pid_t self_;
  const std::string prefix_;
  const ReadMarker read_marker_;
  std::map<Key, Generation> known_;
  std::set<Key> foreign_;  // looked at once; not ours
  std::map<Generation, std::vector<ProcessStat>> alive_;
  std::vector<ProcessStat> strays_;
};

}  // namespace perdure::agent
