#include "storage/faulty_files.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

#include "base/posix.h"

namespace perdure {
namespace {

[[noreturn]] void KillThisProcess() {
  ::kill(::getpid(), SIGKILL);
  // SIGKILL to oneself is delivered before kill returns to user code in a single-threaded process;
  // other threads may need a moment.
  for (;;) ::pause();
}

bool IsKill(Fault::Kind kind) {
  return kind == Fault::Kind::kKillBefore || kind == Fault::Kind::kKillMiddle ||
         kind == Fault::Kind::kKillAfter;
}

}  // namespace

class FaultyWritableFile final : public WritableFile {
 public:
  FaultyWritableFile(FaultyFiles& files, std::unique_ptr<WritableFile> base, std::string path)
      : files_(files), base_(std::move(base)), path_(std::move(path)) {}

  Status Reserve(std::int64_t bytes) override {
    return files_.Do("reserve", path_, [&] { return base_->Reserve(bytes); });
  }

  Status Write(std::int64_t offset, std::span<const std::byte> bytes) override {
    const FaultyFiles::Verdict verdict = files_.Begin("write", path_);
    if (!verdict.hit) return base_->Write(offset, bytes);
    const Fault::Kind kind = verdict.fault.kind;
    if (kind == Fault::Kind::kSwallow) return base_->Write(offset, bytes);
    if (kind == Fault::Kind::kShortWrite || kind == Fault::Kind::kKillMiddle) {
      PERDURE_RETURN_IF_ERROR(base_->Write(offset, bytes.first(bytes.size() / 2)));
    }
    if (kind == Fault::Kind::kKillAfter) PERDURE_RETURN_IF_ERROR(base_->Write(offset, bytes));
    if (IsKill(kind)) KillThisProcess();
    if (kind == Fault::Kind::kHang) files_.Hang();
    return ErrnoStatus(verdict.fault.error, fmt::format("write {}", path_));
  }

  Status Sync() override {
    return files_.Do("sync", path_, [this] { return base_->Sync(); });
  }

  Status Close() override {
    return files_.Do("close", path_, [this] { return base_->Close(); });
  }

 private:
  FaultyFiles& files_;
  std::unique_ptr<WritableFile> base_;
  std::string path_;
};

void FaultyFiles::Set(std::vector<Fault> faults) {
  MutexLock lock(mutex_);
  faults_.clear();
  for (Fault& fault : faults) faults_.push_back({std::move(fault), 0});
}

void FaultyFiles::LetGo() {
  MutexLock lock(mutex_);
  let_go_ = true;
  changed_.NotifyAll();
}

void FaultyFiles::HangAgain() {
  MutexLock lock(mutex_);
  let_go_ = false;
}

void FaultyFiles::Hang() {
  MutexLock lock(mutex_);
  while (!let_go_) changed_.Wait(mutex_);
}

std::int64_t FaultyFiles::steps() const {
  MutexLock lock(mutex_);
  return static_cast<std::int64_t>(history_.size());
}

std::vector<std::string> FaultyFiles::history() const {
  MutexLock lock(mutex_);
  return history_;
}

FaultyFiles::Verdict FaultyFiles::Begin(const std::string& verb, const std::string& path) {
  MutexLock lock(mutex_);
  history_.push_back(fmt::format("{} {}", verb, path));
  for (Armed& armed : faults_) {
    const Fault& fault = armed.fault;
    if (!fault.verb.empty() && fault.verb != verb) continue;
    if (path.find(fault.path_contains) == std::string::npos) continue;
    ++armed.matching_steps;
    if (armed.matching_steps >= fault.first_step && armed.matching_steps <= fault.last_step) {
      return {true, fault};
    }
  }
  return {};
}

template <class Action>
Status FaultyFiles::Do(const std::string& verb, const std::string& path, Action action) {
  const Verdict verdict = Begin(verb, path);
  if (!verdict.hit) return action();
  if (verdict.fault.kind == Fault::Kind::kSwallow) {
    return verb.substr(0, 4) == "sync" ? Ok() : action();
  }
  if (verdict.fault.kind == Fault::Kind::kKillAfter) static_cast<void>(action().ok());
  if (IsKill(verdict.fault.kind)) KillThisProcess();
  if (verdict.fault.kind == Fault::Kind::kHang) Hang();
  return ErrnoStatus(verdict.fault.error, fmt::format("{} {}", verb, path));
}

Result<std::unique_ptr<WritableFile>> FaultyFiles::Create(const std::string& path) {
  std::unique_ptr<WritableFile> file;
  const Status status = Do("create", path, [&]() -> Status {
    PERDURE_ASSIGN_OR_RETURN(file, base_.Create(path));
    return Ok();
  });
  PERDURE_RETURN_IF_ERROR(status);
  return std::unique_ptr<WritableFile>(
      std::make_unique<FaultyWritableFile>(*this, std::move(file), path));
}

Result<std::unique_ptr<ReadableFile>> FaultyFiles::Open(const std::string& path) {
  return base_.Open(path);
}

Result<std::vector<DirectoryEntry>> FaultyFiles::List(const std::string& directory) {
  return base_.List(directory);
}

Result<FileInfo> FaultyFiles::Info(const std::string& path) {
  return base_.Info(path);
}

Status FaultyFiles::MakeDirectory(const std::string& path) {
  return Do("mkdir", path, [&] { return base_.MakeDirectory(path); });
}

Status FaultyFiles::Rename(const std::string& from, const std::string& to, Replace replace) {
  return Do("rename", fmt::format("{} -> {}", from, to),
            [&] { return base_.Rename(from, to, replace); });
}

Status FaultyFiles::Link(const std::string& from, const std::string& to) {
  return Do("link", fmt::format("{} -> {}", from, to), [&] { return base_.Link(from, to); });
}

Status FaultyFiles::Remove(const std::string& path) {
  return Do("remove", path, [&] { return base_.Remove(path); });
}

Status FaultyFiles::SyncDirectory(const std::string& directory) {
  return Do("syncdir", directory, [&] { return base_.SyncDirectory(directory); });
}

Status FaultyFiles::SyncFile(const std::string& path) {
  return Do("syncfile", path, [&] { return base_.SyncFile(path); });
}

}  // namespace perdure
