// A file being read. What was announced by Expect is fetched ahead in order, block by block, as
// many at once as the lane has; a Read copies from the blocks and sends those that it has used up
// to fetch the next part. A Read elsewhere takes the plain way.
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "storage/direct_path.h"
#include "storage/posix_io.h"

namespace perdure {
namespace {

class DirectReadableFile final : public ReadableFile {
 public:
  DirectReadableFile(UniqueFd fd, std::string path, const DirectOptions& options,
                     DirectChoice& choice)
      : fd_(std::move(fd)), path_(std::move(path)), options_(options), choice_(choice) {}

  Result<std::int64_t> Size() override { return SizeOf(fd_.get(), path_); }

  void Expect(std::int64_t offset, std::int64_t bytes) override {
    if (!ForgetAll().ok() || bytes < options_.direct_from_bytes || !DirectWay()) return;
    const std::int64_t alignment = direct_->alignment();
    next_ = offset / alignment * alignment;
    end_ = offset + bytes;
    // An error shows again when a Read comes to it.
    static_cast<void>(FetchAhead().ok());
  }

  Status Read(std::int64_t offset, std::span<std::byte> bytes) override {
    while (!bytes.empty()) {
      PERDURE_RETURN_IF_ERROR(DropBefore(offset));
      if (ahead_.empty() || offset < ahead_.front().offset) {
        return ReadAll(fd_.get(), offset, bytes, path_);
      }
      PERDURE_RETURN_IF_ERROR(Arrive(ahead_.front()));
      PERDURE_RETURN_IF_ERROR(FetchAhead());  // the next one, while this one is copied
      const Fetch& front = ahead_.front();
      const auto skip = static_cast<std::size_t>(offset - front.offset);
      if (skip >= front.have) {
        // The file is shorter than was expected, or was when the block was fetched.
        return ReadAll(fd_.get(), offset, bytes, path_);
      }
      const std::size_t count = std::min(bytes.size(), front.have - skip);
      std::memcpy(bytes.data(), direct_->lane().memory(front.block).data() + skip, count);
      bytes = bytes.subspan(count);
      offset += static_cast<std::int64_t>(count);
    }
    return DropBefore(offset);
  }

 private:
  struct Fetch {
    std::size_t block = 0;
    std::int64_t offset = 0;
    std::size_t bytes = 0;  // asked for
    std::size_t have = 0;   // there
    bool arrived = false;
    std::int64_t end() const { return offset + static_cast<std::int64_t>(bytes); }
  };

  // Tried once per file.
  bool DirectWay() {
    if (!direct_tried_) {
      direct_tried_ = true;
      direct_ = DirectPath::Open(fd_.get(), path_, O_RDONLY, options_, choice_);
    }
    return direct_ != nullptr && !refused_;
  }

  Status FetchAhead() {
    IoLane& lane = direct_->lane();
    const std::int64_t alignment = direct_->alignment();
    for (std::size_t block = 0; block < lane.blocks() && next_ < end_ && !refused_; ++block) {
      if (lane.full()) break;
      const bool used = std::any_of(ahead_.begin(), ahead_.end(),
                                    [&](const Fetch& fetch) { return fetch.block == block; });
      if (used) continue;
      const std::int64_t left = (end_ - next_ + alignment - 1) / alignment * alignment;
      const std::size_t bytes = std::min(lane.memory(block).size(), static_cast<std::size_t>(left));
      PERDURE_RETURN_IF_ERROR(
          Named(lane.Start(Ring::Verb::kRead, block, direct_->fd(), next_, bytes)));
      ahead_.push_back({block, next_, bytes});
      next_ += static_cast<std::int64_t>(bytes);
    }
    return Ok();
  }

  // Until the block is there, or what could be had of it.
  Status Arrive(Fetch& fetch) {
    if (fetch.arrived) return Ok();
    IoLane& lane = direct_->lane();
    while (lane.in_flight(fetch.block)) PERDURE_RETURN_IF_ERROR(Named(lane.Wait().status()));
    const IoLane::Outcome outcome = lane.outcome(fetch.block);
    if (outcome.error != 0 && !direct_->Refuses(outcome.error)) {
      return ErrnoStatus(outcome.error, fmt::format("read {}", path_));
    }
    refused_ = refused_ || outcome.error != 0;
    fetch.arrived = true;
    fetch.have = outcome.done;
    if (outcome.done == fetch.bytes) return Ok();
    // Short: the rest the plain way, as far as the file goes.
    PERDURE_ASSIGN_OR_RETURN(const std::int64_t size, Size());
    const std::int64_t there = std::min(fetch.end(), size) - fetch.offset;
    if (there <= static_cast<std::int64_t>(fetch.have)) return Ok();
    const auto whole = static_cast<std::size_t>(there);
    PERDURE_RETURN_IF_ERROR(ReadAll(fd_.get(), fetch.offset + static_cast<std::int64_t>(fetch.have),
                                    lane.memory(fetch.block).first(whole).subspan(fetch.have),
                                    path_));
    fetch.have = whole;
    return Ok();
  }

  // Gives up the blocks that end at or before `offset` for what comes next.
  Status DropBefore(std::int64_t offset) {
    bool dropped = false;
    while (!ahead_.empty() && ahead_.front().end() <= offset) {
      PERDURE_RETURN_IF_ERROR(Arrive(ahead_.front()));
      ahead_.pop_front();
      dropped = true;
    }
    return dropped ? FetchAhead() : Ok();
  }

  Status ForgetAll() {
    next_ = end_ = 0;
    while (direct_ != nullptr && direct_->lane().count_in_flight() > 0) {
      PERDURE_RETURN_IF_ERROR(direct_->lane().Wait().status());
    }
    ahead_.clear();
    return Ok();
  }

  Status Named(Status status) const { return status.WithContext(fmt::format("read {}", path_)); }

  UniqueFd fd_;
  const std::string path_;
  const DirectOptions& options_;
  DirectChoice& choice_;

  bool direct_tried_ = false;
  bool refused_ = false;
  std::unique_ptr<DirectPath> direct_;
  std::int64_t next_ = 0;    // to be fetched next
  std::int64_t end_ = 0;     // of what was announced
  std::deque<Fetch> ahead_;  // at most one per block, in the order of the file
};

}  // namespace

std::unique_ptr<ReadableFile> MakeDirectReader(UniqueFd fd, std::string path,
                                               const DirectOptions& options, DirectChoice& choice) {
  return std::make_unique<DirectReadableFile>(std::move(fd), std::move(path), options, choice);
}

}  // namespace perdure
