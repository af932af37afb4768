// The save protocol of one rank, from a captured copy to "committed". Runs on the saver's thread,
// one save at a time.
//
// Protocol (the numbers are those of docs/commit-protocol.md; 1 and 2 happened before):
//   3 every rank publishes the hash of its structure (the structure itself when the hash is new);
//     rank 0 plans who writes what, makes the attempt's directory, fsyncs ROOT, and says go
//   4 every rank writes its shard: data streams out, hashed as it passes, header last; fsync,
//     close, fsync of the directory
//   5 once its snapshot is sealed (snapshot.h), every rank reports its file and one digest per set
//     of ranks that hold the same pieces
//   6 rank 0 checks that all reports are there, carry this attempt and agree; when digests differ
//   it
//     asks for those of each tensor, to name the culprit; then the manifest: temporary name, fsync,
//     rename, fsync of the directory
//   7 claims are read again (CKPT-9), the directory gets its final name, fsync of ROOT: the commit
//     point
//   8 everyone is told the outcome, whichever it is
//   9 ROOT/latest, a hint
//  10 retention
// A failed attempt is tried once more from the same copy, under a new id: after a failed fsync
// nothing is retried on the same file. When some rank has no copy of all of it (it streams, see
// capture_plan.h), what failed after the shards were begun is not tried again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/exchange.h"
#include "checkpoint/layout.h"
#include "checkpoint/lineage.h"
#include "checkpoint/manifest.h"
#include "checkpoint/retention.h"
#include "checkpoint/shard.h"
#include "checkpoint/snapshot.h"
#include "perdure/clock.h"
#include "perdure/ids.h"
#include "perdure/status.h"
#include "storage/file_store.h"
#include "storage/files.h"

namespace perdure {

// What a save writes, and until when.
struct SaveJob {
  Step step;
  int first_try = 0;             // counts the tries for this step in this generation
  Status captured;               // an error: this rank has nothing to write, and says so
  Snapshot* snapshot = nullptr;  // null only with an error
  Deadline deadline;
  std::string foreign = {};  // where the program's own files wait (foreign.h)
};

struct SaveOutcome {
  Status status;       // OK: durable
  bool retry = false;  // rank 0 says: once more
  std::string attempt;
  std::string name;  // directory name, when visible
  std::int64_t bytes = 0;
};

class Saver {
 public:
  static constexpr int kTriesPerSave = 2;

  struct Settings {
    std::string root;
    std::string root_id;
    std::string job;
    RetentionPolicy retention;
  };

  // Both references outlive this.
  Saver(Settings settings, Exchange& exchange, Files& files)
      : settings_(std::move(settings)),
        exchange_(exchange),
        files_(files),
        store_(files, settings_.root) {}

  // Where this generation stands; before the first save.
  void SetLineage(Lineage lineage) { lineage_ = std::move(lineage); }

  // Steps 3 to 8, with the second try if the first one fails.
  SaveOutcome Save(const SaveJob& job);
  // Steps 9 and 10, rank 0 only, after a durable save of this name.
  void TidyUp(const std::string& committed);

 private:
  SaveOutcome SaveWithRetry(const SaveJob& job);
  SaveOutcome Try(const SaveJob& job, int attempt_number);
  Status PublishStructure(const SaveJob& job, const std::string& prefix);
  // Rank 0's part of step 3: what to tell everyone.
  Result<std::string> Prepare(const SaveJob& job, const std::string& prefix);
  // This rank's part of a plan, remembered until another plan comes.
  Result<RankPlan> PlanOf(const std::string& plan_id, const Structure& structure,
                          Deadline deadline);
  Status WriteAndReport(const SaveJob& job, const std::string& prefix, const std::string& attempt,
                        const RankPlan& plan);
  // Rank 0's steps 6 to 8.
  SaveOutcome Commit(const SaveJob& job, const std::string& prefix, const std::string& attempt,
                     int& notices);
  Status Disagreement(const SaveJob& job, const std::string& prefix, int holders,
                      const std::vector<std::string>& digests, int& notices);
  SaveOutcome ReadOutcome(const SaveJob& job, const std::string& prefix, const RankPlan& plan);
  std::string TensorDigests(const SaveJob& job, const RankPlan& plan, int holders) const;
  // What all of this rank's writes read, and the digests of what others hold too.
  static std::vector<ShardContent> ContentsOf(const SaveJob& job, const RankPlan& plan);
  Status DigestShared(const SaveJob& job, const RankPlan& plan);

  const Settings settings_;
  Exchange& exchange_;
  Files& files_;
  FileStore store_;  // the root
  Lineage lineage_;

  // What was published and planned before, so that an unchanged structure costs one hash.
  std::string published_structure_;
  std::string plan_id_;
  RankPlan plan_;
  // Of the present try's shared pieces, as they stand in the plan.
  std::vector<std::vector<std::string>> shared_digests_;
  // Rank 0: some rank streams, so the shards can be written only once.
  bool written_once_ = false;
  // Rank 0: the keys of earlier tries, to be forgotten when every rank has come to a later one.
  std::vector<std::string> told_;
  // Rank 0: the last structure of each rank, and the plan made of them.
  std::vector<std::string> structure_hashes_;
  std::vector<Structure> structures_;
  WritePlan write_plan_;
  std::string write_plan_id_;
  // Rank 0: a commit is visible but its root was not synced: nothing is deleted until one is.
  bool durability_unknown_ = false;
};

}  // namespace perdure
