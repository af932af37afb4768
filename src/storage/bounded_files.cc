#include "storage/bounded_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/thread.h"

namespace perdure {
namespace {

constexpr std::size_t kSliceBytes = std::size_t{4} << 20;

}  // namespace

// Shared by the files and by every thread of the pool, so that one that is left behind still has
// it.
class BoundedFiles::Pool : public std::enable_shared_from_this<BoundedFiles::Pool> {
 public:
  struct Call {
    std::string doing;
    std::function<void()> body;
    bool done = false;
    bool given_up = false;
  };

  explicit Pool(Duration patience) : patience_(patience) {}

  // Hands a call to a thread. An error: too many are stuck.
  Result<std::shared_ptr<Call>> Begin(std::string doing, std::function<void()> body) {
    auto call = std::make_shared<Call>();
    call->doing = std::move(doing);
    call->body = std::move(body);
    MutexLock lock(mutex_);
    if (stuck_ >= kStuckMax) {
      return Status(Code::kUnavailable,
                    fmt::format("{}: not tried; {} earlier calls to the file system have not "
                                "returned",
                                call->doing, stuck_));
    }
    if (idle_ > 0) {
      --idle_;
    } else if (StartUnjoined("storage-call", [pool = shared_from_this()] { pool->Work(); })) {
      ++threads_;
    } else {
      return Status(Code::kResourceExhausted,
                    fmt::format("{}: the system gives no more threads", call->doing));
    }
    calls_.push_back(call);
    changed_.NotifyAll();
    return call;
  }

  // OK: its body has run.
  Status Finish(const std::shared_ptr<Call>& call) {
    const Deadline deadline = Deadline::After(patience_);
    MutexLock lock(mutex_);
    while (!call->done) {
      if (changed_.WaitUntil(mutex_, deadline) || call->done) continue;
      call->given_up = true;
      ++stuck_;
      Status given_up(Code::kDeadlineExceeded,
                      fmt::format("{}: the file system has not answered for {:.1f} s", call->doing,
                                  Seconds(patience_)));
      Log().error("{}; the call is given up", given_up.message());
      return given_up;
    }
    return Ok();
  }

  // The result of `body`, or the pool's error. What `body` captures is its own.
  template <class T>
  T Run(std::string doing, std::function<T()> body) {
    auto result = std::make_shared<std::optional<T>>();
    const Result<std::shared_ptr<Call>> call =
        Begin(std::move(doing), [result, body = std::move(body)] { result->emplace(body()); });
    if (!call.ok()) return call.status();
    if (const Status status = Finish(*call); !status.ok()) return status;
    return std::move(**result);
  }

  int stuck() const {
    MutexLock lock(mutex_);
    return stuck_;
  }

  // Ends the threads, and waits for those that come back in time.
  void Close() {
    const Deadline deadline = Deadline::After(patience_);
    MutexLock lock(mutex_);
    closing_ = true;
    changed_.NotifyAll();
    while (threads_ > stuck_) {
      if (!changed_.WaitUntil(mutex_, deadline)) return;
    }
  }

 private:
  void Work() {
    for (;;) {
      std::shared_ptr<Call> call;
      {
        MutexLock lock(mutex_);
        while (calls_.empty() && !closing_) changed_.Wait(mutex_);
        if (calls_.empty()) {
          --threads_;
          changed_.NotifyAll();
          return;
        }
        call = calls_.front();
        calls_.pop_front();
      }
      call->body();
      call->body = nullptr;  // what it holds may go before anybody hears of it
      MutexLock lock(mutex_);
      call->done = true;
      if (call->given_up) {
        --stuck_;
        Log().warn("{}: returned after it had been given up", call->doing);
      }
      ++idle_;
      changed_.NotifyAll();
    }
  }

  const Duration patience_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Call>> calls_ PERDURE_GUARDED_BY(mutex_);
  int idle_ PERDURE_GUARDED_BY(mutex_) = 0;  // threads that no call was promised to
  int threads_ PERDURE_GUARDED_BY(mutex_) = 0;
  int stuck_ PERDURE_GUARDED_BY(mutex_) = 0;
  bool closing_ PERDURE_GUARDED_BY(mutex_) = false;
};

namespace {

using Pool = BoundedFiles::Pool;

class BoundedWritableFile final : public WritableFile {
 public:
  BoundedWritableFile(std::shared_ptr<Pool> pool, std::shared_ptr<Files> files,
                      std::unique_ptr<WritableFile> file, std::string path)
      : pool_(std::move(pool)),
        files_(std::move(files)),
        file_(std::move(file)),
        path_(std::move(path)) {}

  ~BoundedWritableFile() override {
    // Closing a descriptor may hang as well. Nobody waits for what was abandoned.
    if (file_ == nullptr) return;
    static_cast<void>(pool_
                          ->Begin("close " + path_, [file = std::move(file_),
                                                     files = files_]() mutable { file.reset(); })
                          .ok());
  }

  Status Reserve(std::int64_t bytes) override {
    PERDURE_RETURN_IF_ERROR(Settle());
    PERDURE_RETURN_IF_ERROR(
        Begin("reserve", [file = file_, bytes] { return file->Reserve(bytes); }));
    return Settle();
  }

  // Copies the next slice while the one before is being written.
  Status Write(std::int64_t offset, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      PERDURE_RETURN_IF_ERROR(failed_);
      if (std::exchange(slices_, slices_ + 1) == 1) {
        // With the first slice the file found out which way the bytes go.
        PERDURE_RETURN_IF_ERROR(Settle());
      }
      if (in_flight_ == nullptr && file_->WritesAreBounded()) {
        return failed_ = file_->Write(offset, bytes);
      }
      const std::span<const std::byte> slice = bytes.first(std::min(bytes.size(), kSliceBytes));
      std::shared_ptr<std::vector<std::byte>>& buffer = buffers_[next_buffer_];
      next_buffer_ = 1 - next_buffer_;
      if (buffer == nullptr) buffer = std::make_shared<std::vector<std::byte>>();
      buffer->assign(slice.begin(), slice.end());
      PERDURE_RETURN_IF_ERROR(Settle());
      PERDURE_RETURN_IF_ERROR(Begin(
          "write", [file = file_, offset, kept = buffer] { return file->Write(offset, *kept); }));
      bytes = bytes.subspan(slice.size());
      offset += static_cast<std::int64_t>(slice.size());
    }
    return failed_;
  }

  Status Sync() override {
    PERDURE_RETURN_IF_ERROR(Settle());
    PERDURE_RETURN_IF_ERROR(Begin("sync", [file = file_] { return file->Sync(); }));
    return Settle();
  }

  Status Close() override {
    PERDURE_RETURN_IF_ERROR(Settle());
    PERDURE_RETURN_IF_ERROR(Begin("close", [file = file_] { return file->Close(); }));
    return Settle();
  }

 private:
  Status Begin(std::string_view verb, std::function<Status()> body) {
    result_ = std::make_shared<Status>();
    Result<std::shared_ptr<Pool::Call>> call = pool_->Begin(
        fmt::format("{} {}", verb, path_),
        [result = result_, files = files_, body = std::move(body)] { *result = body(); });
    if (!call.ok()) return failed_ = call.status();
    in_flight_ = std::move(call).value();
    return Ok();
  }

  // Waits for what is in flight. After an error nothing more is expected of this file.
  Status Settle() {
    if (in_flight_ == nullptr) return failed_;
    failed_ = pool_->Finish(std::exchange(in_flight_, nullptr));
    if (failed_.ok()) failed_ = *result_;
    return failed_;
  }

  const std::shared_ptr<Pool> pool_;
  const std::shared_ptr<Files> files_;
  std::shared_ptr<WritableFile> file_;
  const std::string path_;
  std::shared_ptr<std::vector<std::byte>> buffers_[2];
  int next_buffer_ = 0;
  std::int64_t slices_ = 0;
  std::shared_ptr<Pool::Call> in_flight_;
  std::shared_ptr<Status> result_;
  Status failed_;
};

class BoundedReadableFile final : public ReadableFile {
 public:
  BoundedReadableFile(std::shared_ptr<Pool> pool, std::shared_ptr<ReadableFile> file,
                      std::string path)
      : pool_(std::move(pool)), file_(std::move(file)), path_(std::move(path)) {}

  Result<std::int64_t> Size() override {
    return pool_->Run<Result<std::int64_t>>("stat " + path_,
                                            [file = file_] { return file->Size(); });
  }

  // Unguarded, as the large reads are.
  void Expect(std::int64_t offset, std::int64_t bytes) override { file_->Expect(offset, bytes); }

  Status Read(std::int64_t offset, std::span<std::byte> bytes) override {
    if (static_cast<std::int64_t>(bytes.size()) > BoundedFiles::kGuardedReadBytesMax) {
      return file_->Read(offset, bytes);
    }
    const auto buffer = std::make_shared<std::vector<std::byte>>(bytes.size());
    PERDURE_RETURN_IF_ERROR(pool_->Run<Status>(
        "read " + path_, [file = file_, offset, buffer] { return file->Read(offset, *buffer); }));
    if (!bytes.empty()) std::memcpy(bytes.data(), buffer->data(), bytes.size());
    return Ok();
  }

 private:
  const std::shared_ptr<Pool> pool_;
  const std::shared_ptr<ReadableFile> file_;
  const std::string path_;
};

}  // namespace

BoundedFiles::BoundedFiles(std::shared_ptr<Files> base, Duration patience)
    : base_(std::move(base)), pool_(std::make_shared<Pool>(patience)) {}

BoundedFiles::~BoundedFiles() {
  pool_->Close();
}

int BoundedFiles::stuck() const {
  return pool_->stuck();
}

Result<std::unique_ptr<WritableFile>> BoundedFiles::Create(const std::string& path) {
  using Made = Result<std::unique_ptr<WritableFile>>;
  PERDURE_ASSIGN_OR_RETURN(
      std::unique_ptr<WritableFile> file,
      pool_->Run<Made>("create " + path, [base = base_, path] { return base->Create(path); }));
  return std::unique_ptr<WritableFile>(
      std::make_unique<BoundedWritableFile>(pool_, base_, std::move(file), path));
}

Result<std::unique_ptr<ReadableFile>> BoundedFiles::Open(const std::string& path) {
  using Opened = Result<std::unique_ptr<ReadableFile>>;
  PERDURE_ASSIGN_OR_RETURN(
      std::unique_ptr<ReadableFile> file,
      pool_->Run<Opened>("open " + path, [base = base_, path] { return base->Open(path); }));
  return std::unique_ptr<ReadableFile>(
      std::make_unique<BoundedReadableFile>(pool_, std::move(file), path));
}

Result<std::vector<DirectoryEntry>> BoundedFiles::List(const std::string& directory) {
  return pool_->Run<Result<std::vector<DirectoryEntry>>>(
      "list " + directory, [base = base_, directory] { return base->List(directory); });
}

Result<FileInfo> BoundedFiles::Info(const std::string& path) {
  return pool_->Run<Result<FileInfo>>("stat " + path,
                                      [base = base_, path] { return base->Info(path); });
}

Status BoundedFiles::MakeDirectory(const std::string& path) {
  return pool_->Run<Status>("mkdir " + path,
                            [base = base_, path] { return base->MakeDirectory(path); });
}

Status BoundedFiles::Rename(const std::string& from, const std::string& to, Replace replace) {
  return pool_->Run<Status>(
      fmt::format("rename {} to {}", from, to),
      [base = base_, from, to, replace] { return base->Rename(from, to, replace); });
}

Status BoundedFiles::Link(const std::string& from, const std::string& to) {
  return pool_->Run<Status>(fmt::format("link {} to {}", from, to),
                            [base = base_, from, to] { return base->Link(from, to); });
}

Status BoundedFiles::Remove(const std::string& path) {
  return pool_->Run<Status>("remove " + path, [base = base_, path] { return base->Remove(path); });
}

Status BoundedFiles::SyncDirectory(const std::string& directory) {
  return pool_->Run<Status>("fsync " + directory,
                            [base = base_, directory] { return base->SyncDirectory(directory); });
}

Status BoundedFiles::SyncFile(const std::string& path) {
  return pool_->Run<Status>("fsync " + path, [base = base_, path] { return base->SyncFile(path); });
}

}  // namespace perdure
