// A file being written, by the steps of direct_files.h. A *run* is a stretch of writes that follow
// each other: its bytes are copied into the lane's blocks and leave when a block is full. Whatever
// does not follow ends the run: the last block is sent as far as it is aligned, its rest takes the
// plain way, and all of the run has arrived before anything else is written, so that a later write
// to the same place wins.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "storage/direct_path.h"
#include "storage/posix_io.h"

namespace perdure {
namespace {

class DirectWritableFile final : public WritableFile {
 public:
  DirectWritableFile(UniqueFd fd, std::string path, const DirectOptions& options,
                     DirectChoice& choice)
      : fd_(std::move(fd)), path_(std::move(path)), options_(options), choice_(choice) {}

  Status Reserve(std::int64_t bytes) override {
    PERDURE_RETURN_IF_ERROR(failed_);
    return Keep(ReserveAll(fd_.get(), bytes, path_));
  }

  Status Write(std::int64_t offset, std::span<const std::byte> bytes) override {
    PERDURE_RETURN_IF_ERROR(failed_);
    return Keep(DoWrite(offset, bytes));
  }

  // What waits in a Write is the lane, which has a bound.
  bool WritesAreBounded() const override { return direct_ != nullptr && !refused_; }

  Status Sync() override {
    PERDURE_RETURN_IF_ERROR(failed_);
    return Keep(DoSync());
  }

  Status Close() override {
    PERDURE_RETURN_IF_ERROR(failed_);
    PERDURE_RETURN_IF_ERROR(Keep(EndRun()));
    direct_.reset();
    // After EINTR the descriptor is gone on Linux, but whether the data went well is unknown.
    if (::close(fd_.Release()) != 0) {
      return Keep(ErrnoStatus(errno, fmt::format("close {}", path_)));
    }
    failed_ = Status(Code::kFailedPrecondition, fmt::format("{} is closed", path_));
    return Ok();
  }

 private:
  struct Filling {
    std::size_t block = 0;
    std::int64_t offset = 0;  // of the block in the file, aligned
    std::size_t bytes = 0;
  };
  struct Sent {
    std::int64_t offset = 0;
    std::size_t bytes = 0;
  };

  // The first error stays.
  Status Keep(Status status) {
    if (!status.ok()) failed_ = status;
    return status;
  }

  Status Plain(std::int64_t offset, std::span<const std::byte> bytes) {
    return WriteAll(fd_.get(), offset, bytes, path_);
  }

  Status DoWrite(std::int64_t offset, std::span<const std::byte> bytes) {
    if (in_run_ && offset != run_end_) PERDURE_RETURN_IF_ERROR(EndRun());
    if (!in_run_) {
      const bool large = static_cast<std::int64_t>(bytes.size()) >= options_.direct_from_bytes;
      if (!large || !DirectWay()) return Plain(offset, bytes);
      const std::int64_t alignment = direct_->alignment();
      const auto head = std::min(
          bytes.size(), static_cast<std::size_t>((alignment - offset % alignment) % alignment));
      PERDURE_RETURN_IF_ERROR(Plain(offset, bytes.first(head)));
      bytes = bytes.subspan(head);
      run_end_ = offset + static_cast<std::int64_t>(head);
      in_run_ = true;
    }
    while (!bytes.empty()) {
      if (!filling_.has_value()) PERDURE_RETURN_IF_ERROR(TakeBlock());
      if (!in_run_) return Plain(run_end_, bytes);  // refused meanwhile
      const std::span<std::byte> room = direct_->lane().memory(filling_->block);
      const std::size_t count = std::min(bytes.size(), room.size() - filling_->bytes);
      std::memcpy(room.data() + filling_->bytes, bytes.data(), count);
      filling_->bytes += count;
      run_end_ += static_cast<std::int64_t>(count);
      bytes = bytes.subspan(count);
      if (filling_->bytes == room.size()) {
        const Filling full = *filling_;
        filling_.reset();
        PERDURE_RETURN_IF_ERROR(Send(full.block, full.offset, full.bytes));
      }
    }
    return Ok();
  }

  // Tried once per file.
  bool DirectWay() {
    if (!direct_tried_) {
      direct_tried_ = true;
      direct_ = DirectPath::Open(fd_.get(), path_, O_WRONLY, options_, choice_);
      if (direct_ != nullptr) sent_.resize(direct_->lane().blocks());
    }
    return direct_ != nullptr && !refused_;
  }

  // An idle block to fill from run_end_ on. Ends the run instead when direct requests turned out to
  // be refused.
  Status TakeBlock() {
    IoLane& lane = direct_->lane();
    if (refused_) return EndRun();
    for (std::size_t block = 0; block < lane.blocks(); ++block) {
      if (lane.in_flight(block)) continue;
      filling_ = Filling{block, run_end_, 0};
      break;
    }
    return Ok();
  }

  Status Send(std::size_t block, std::int64_t offset, std::size_t bytes) {
    if (bytes == 0) return Ok();
    while (direct_->lane().full()) PERDURE_RETURN_IF_ERROR(TakeOneBack());
    sent_[block] = {offset, bytes};
    return direct_->lane()
        .Start(Ring::Verb::kWrite, block, direct_->fd(), offset, bytes)
        .WithContext(fmt::format("write {}", path_));
  }

  // Waits for one request and finishes what it left undone.
  Status TakeOneBack() {
    IoLane& lane = direct_->lane();
    const Result<std::size_t> block = lane.Wait();
    if (!block.ok()) return block.status().WithContext(fmt::format("write {}", path_));
    const IoLane::Outcome outcome = lane.outcome(*block);
    const Sent& sent = sent_[*block];
    if (outcome.error != 0) {
      if (!direct_->Refuses(outcome.error)) {
        return ErrnoStatus(outcome.error, fmt::format("write {}", path_));
      }
      refused_ = true;
    }
    if (outcome.done == sent.bytes) return Ok();
    return Plain(sent.offset + static_cast<std::int64_t>(outcome.done),
                 lane.memory(*block).first(sent.bytes).subspan(outcome.done));
  }

  Status EndRun() {
    if (!in_run_) return Ok();
    in_run_ = false;
    if (filling_.has_value()) {
      const Filling last = *filling_;
      filling_.reset();
      const auto alignment = static_cast<std::size_t>(direct_->alignment());
      const std::size_t aligned = refused_ ? 0 : last.bytes / alignment * alignment;
      const auto rest = direct_->lane().memory(last.block).first(last.bytes).subspan(aligned);
      PERDURE_RETURN_IF_ERROR(Send(last.block, last.offset, aligned));
      PERDURE_RETURN_IF_ERROR(Plain(last.offset + static_cast<std::int64_t>(aligned), rest));
    }
    while (direct_->lane().count_in_flight() > 0) PERDURE_RETURN_IF_ERROR(TakeOneBack());
    return Ok();
  }

  Status DoSync() {
    PERDURE_RETURN_IF_ERROR(EndRun());
    int error = 0;
    if (direct_ != nullptr) {
      const Result<int> synced = direct_->lane().Sync(fd_.get());
      if (!synced.ok()) return synced.status().WithContext(fmt::format("fsync {}", path_));
      error = *synced;
    } else if (::fsync(fd_.get()) != 0) {
      error = errno;
    }
    return error == 0 ? Ok() : ErrnoStatus(error, fmt::format("fsync {}", path_));
  }

  UniqueFd fd_;
  const std::string path_;
  const DirectOptions& options_;
  DirectChoice& choice_;
  Status failed_;

  bool direct_tried_ = false;
  bool refused_ = false;  // a direct request was; what follows goes the plain way
  std::unique_ptr<DirectPath> direct_;
  bool in_run_ = false;
  std::int64_t run_end_ = 0;  // where the next write must begin to belong to the run
  std::optional<Filling> filling_;
  std::vector<Sent> sent_;  // by block
};

}  // namespace

std::unique_ptr<WritableFile> MakeDirectWriter(UniqueFd fd, std::string path,
                                               const DirectOptions& options, DirectChoice& choice) {
  return std::make_unique<DirectWritableFile>(std::move(fd), std::move(path), options, choice);
}

}  // namespace perdure
