// Files that fail when told to: every test of what happens when the disk, the process or the
// machine stops in the middle is written with it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "storage/files.h"

namespace perdure {

// What happens, and when. Steps are counted from 1 over all verbs that change the disk, in the
// order in which they begin.
struct Fault {
  enum class Kind : std::uint8_t {
    kError,       // the step is not carried out and fails with `error`
    kShortWrite,  // half of a Write is carried out, then it fails with `error`; else like kError
    kKillBefore,  // SIGKILL to this process before the step
    kKillMiddle,  // … after half of a Write; else like kKillBefore
    kKillAfter,   // … after the step
    kSwallow,     // a sync, syncdir or syncfile is not carried out and reports success; other steps
                  // are carried out
    kHang,        // the step does not return before LetGo, and then fails with `error`
  };
  Kind kind = Kind::kError;
  std::int64_t first_step = 1;
  std::int64_t last_step = INT64_MAX;  // inclusive
  int error = 5;                       // errno; EIO
  std::string verb = {};               // only this one ("sync", "write", …); empty: any
  std::string path_contains = {};      // only where the path contains this
};

class FaultyFiles final : public Files {
 public:
  // `base` outlives this.
  explicit FaultyFiles(Files& base) : base_(base) {}

  // Replaces the faults in force. With a verb or a path given, only matching steps are counted for
  // that fault.
  void Set(std::vector<Fault> faults);
  // Steps that hang return now; later ones that would hang do not, until HangAgain.
  void LetGo();
  void HangAgain();
  // Steps that began so far.
  std::int64_t steps() const;
  // "sync /root/.tmp-…/manifest.tmp", in order: what was done. For messages and for counting.
  std::vector<std::string> history() const;

  Result<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  Result<std::unique_ptr<ReadableFile>> Open(const std::string& path) override;
  Result<std::vector<DirectoryEntry>> List(const std::string& directory) override;
  Result<FileInfo> Info(const std::string& path) override;
  Status MakeDirectory(const std::string& path) override;
  Status Rename(const std::string& from, const std::string& to, Replace replace) override;
  Status Link(const std::string& from, const std::string& to) override;
  Status Remove(const std::string& path) override;
  Status SyncDirectory(const std::string& directory) override;
  Status SyncFile(const std::string& path) override;

 private:
  friend class FaultyWritableFile;
  struct Armed {
    Fault fault;
    std::int64_t matching_steps = 0;
  };
  // What is to happen at this step: nothing, or the fault.
  struct Verdict {
    bool hit = false;
    Fault fault;
  };
  Verdict Begin(const std::string& verb, const std::string& path);
  void Hang();
  template <class Action>
  Status Do(const std::string& verb, const std::string& path, Action action);

  Files& base_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool let_go_ PERDURE_GUARDED_BY(mutex_) = false;
  std::vector<Armed> faults_ PERDURE_GUARDED_BY(mutex_);
  std::vector<std::string> history_ PERDURE_GUARDED_BY(mutex_);
};

}  // namespace perdure
