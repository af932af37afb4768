#include "checkpoint/snapshot.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "checkpoint/hash.h"
#include "checkpoint/layout.h"

namespace perdure {
namespace {

// How much is copied between two looks at whether the snapshot was given up. Large, because memcpy
// writes past the caches only when it sees that the copy is.
constexpr std::int64_t kCopyBlock = std::int64_t{64} << 20;
// For pieces that are hashed where they lie.
constexpr std::int64_t kHashBlock = std::int64_t{4} << 20;

std::int64_t BytesIn(const Piece& piece) {
  const Result<std::int64_t> bytes = ByteCount(piece.dtype, piece.shape);
  PERDURE_CHECK(bytes.ok(), "Describe has checked the shape");
  return *bytes;
}

// Calls `visit(offset, bytes)` for each block of a piece.
template <class Visit>
Status ForEachBlock(std::int64_t bytes, std::int64_t block, Visit visit) {
  for (std::int64_t at = 0; at < bytes; at += block) {
    PERDURE_RETURN_IF_ERROR(visit(at, std::min(block, bytes - at)));
  }
  return Ok();
}

}  // namespace

class Snapshot::Reading {
 public:
  explicit Reading(Snapshot& snapshot) : snapshot_(snapshot) {
    MutexLock lock(snapshot_.mutex_);
    status_ = snapshot_.failed_;
    if (status_.ok()) ++snapshot_.reading_;
  }
  ~Reading() {
    if (!status_.ok()) return;
    MutexLock lock(snapshot_.mutex_);
    --snapshot_.reading_;
    snapshot_.changed_.NotifyAll();
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  // An error: the snapshot was given up, and nothing may be read.
  const Status& status() const { return status_; }

 private:
  Snapshot& snapshot_;
  Status status_;
};

Result<std::unique_ptr<Snapshot>> Snapshot::Take(LocalState state, const Options& options,
                                                 Staging& memory, const Devices& devices,
                                                 CaptureStreams& streams) {
  PERDURE_ASSIGN_OR_RETURN(CapturePlan plan,
                           PlanCapture(state, {options.may_defer, options.staging_bytes}));
  std::unique_ptr<Snapshot> snapshot(
      new Snapshot(std::move(state), std::move(plan), options, memory, streams));
  const std::size_t count = snapshot->structure().size();
  const std::vector<CaptureWay>& ways = snapshot->plan_.ways;
  const std::vector<LocalEntry>& entries = snapshot->state_.entries;
  std::vector<bool> staged(count, false);
  // Memory that the fastest device of the state likes.
  PERDURE_ASSIGN_OR_RETURN(Device * host, devices.Find(DeviceKind::kCpu, 0));
  for (std::size_t i = 0; i < count; ++i) {
    staged[i] = ways[i] == CaptureWay::kAtOnce || ways[i] == CaptureWay::kDeferred;
    if (!staged[i] || entries[i].view.device == DeviceKind::kCpu) continue;
    PERDURE_ASSIGN_OR_RETURN(host,
                             devices.Find(entries[i].view.device, entries[i].view.device_index));
  }
  PERDURE_RETURN_IF_ERROR(memory.Shape(snapshot->structure(), staged, *host));
  // What the program has queued so far belongs to the step that ended.
  for (CopyStreams* const of : {&streams.training, &streams.capture, &streams.saver}) {
    for (std::size_t i = 0; i < count; ++i) {
      if (ways[i] == CaptureWay::kHeld) continue;
      PERDURE_RETURN_IF_ERROR(
          of->For(entries[i].view).status().WithContext(snapshot->structure()[i].name));
    }
    PERDURE_RETURN_IF_ERROR(of->FollowProgram());
  }
  bool deferred = false;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& name = snapshot->structure()[i].name;
    if (ways[i] == CaptureWay::kHeld || ways[i] == CaptureWay::kAlias) continue;
    if (ways[i] == CaptureWay::kAtOnce) {
      PERDURE_RETURN_IF_ERROR(
          snapshot->CopyPiece(i, streams.training, /*guarded=*/false).WithContext(name));
      continue;
    }
    deferred = deferred || ways[i] == CaptureWay::kDeferred;
    if (!options.verify) continue;
    PERDURE_ASSIGN_OR_RETURN(snapshot->before_[i], snapshot->HashInPlace(i, streams.training));
  }
  PERDURE_RETURN_IF_ERROR(streams.training.Drain(options.deadline));
  MutexLock lock(snapshot->mutex_);
  snapshot->queued_ = snapshot->staged_ = snapshot->copier_done_ = !deferred;
  snapshot->streamed_ = !snapshot->streams_any();
  snapshot->sealed_ = snapshot->captured_locked();
  return snapshot;
}

Status Snapshot::CopyPiece(std::size_t piece, CopyStreams& streams, bool guarded) {
  const TensorView& view = state_.entries[piece].view;
  PERDURE_ASSIGN_OR_RETURN(CopyStream* const stream, streams.For(view));
  const std::span<std::byte> packed = memory_.BytesOf(piece);
  return ForEachBlock(
      static_cast<std::int64_t>(packed.size()), kCopyBlock,
      [&](std::int64_t at, std::int64_t bytes) -> Status {
        std::optional<Reading> reading;
        if (guarded) {
          reading.emplace(*this);
          PERDURE_RETURN_IF_ERROR(reading->status());
        }
        return Pack(view, at,
                    packed.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(bytes)),
                    *stream);
      });
}

Result<std::uint64_t> Snapshot::HashInPlace(std::size_t piece, CopyStreams& streams) {
  const TensorView& view = state_.entries[piece].view;
  PERDURE_ASSIGN_OR_RETURN(CopyStream* const stream, streams.For(view));
  std::vector<std::byte> block;
  std::uint64_t hash = 0;
  const Status hashed =
      ForEachBlock(BytesIn(state_.structure[piece]), kHashBlock,
                   [&](std::int64_t at, std::int64_t bytes) -> Status {
                     block.resize(static_cast<std::size_t>(bytes));
                     PERDURE_RETURN_IF_ERROR(Pack(view, at, block, *stream));
                     PERDURE_ASSIGN_OR_RETURN(const StreamPoint point, stream->Mark());
                     PERDURE_RETURN_IF_ERROR(stream->Wait(point, options_.deadline));
                     hash = hash * 31 + Hash64(block);
                     return Ok();
                   });
  PERDURE_RETURN_IF_ERROR(hashed);
  return hash;
}

Status Snapshot::Changed(std::size_t piece) const {
  return Status(
      Code::kFailedPrecondition,
      fmt::format("tensor {} was changed while it was being saved, before BeforeUpdate of the next "
                  "step had returned; a tensor that changes elsewhere than between BeforeUpdate "
                  "and End is Changes::kAtAnyTime",
                  state_.structure[piece].name));
}

void Snapshot::CopyDeferred() {
  Status status;
  Status broken;
  for (std::size_t i = 0; i < plan_.ways.size() && status.ok(); ++i) {
    if (plan_.ways[i] != CaptureWay::kDeferred) continue;
    status = CopyPiece(i, streams_.capture, /*guarded=*/true).WithContext(state_.structure[i].name);
  }
  // Also after an error: a device may still be writing into the memory.
  const Result<CopyStreams::Points> points = streams_.capture.Mark();
  if (status.ok()) status = points.status();
  // With verify the fence is to hear what the hashes say.
  if (status.ok() && !options_.verify) {
    MutexLock lock(mutex_);
    queued_ = true;
    points_ = *points;
    changed_.NotifyAll();
  }
  const Status drained =
      points.ok() ? CopyStreams::Wait(*points, options_.deadline) : points.status();
  if (status.ok()) status = drained;
  for (auto piece = before_.begin(); piece != before_.end() && status.ok(); ++piece) {
    if (plan_.ways[piece->first] != CaptureWay::kDeferred) continue;
    std::uint64_t hash = 0;
    const std::span<const std::byte> bytes = memory_.BytesOf(piece->first);
    static_cast<void>(ForEachBlock(static_cast<std::int64_t>(bytes.size()), kHashBlock,
                                   [&](std::int64_t at, std::int64_t block) -> Status {
                                     hash = hash * 31 +
                                            Hash64(bytes.subspan(static_cast<std::size_t>(at),
                                                                 static_cast<std::size_t>(block)));
                                     return Ok();
                                   }));
    if (hash != piece->second) status = broken = Changed(piece->first);
  }
  MutexLock lock(mutex_);
  if (failed_.ok()) failed_ = status;
  broken_ = broken;
  queued_ = true;
  staged_ = true;
  copier_done_ = true;
  changed_.NotifyAll();
}

Status Snapshot::WaitStaged(Deadline deadline) {
  MutexLock lock(mutex_);
  while (failed_.ok() && !staged_) {
    if (!changed_.WaitUntil(mutex_, deadline) && failed_.ok() && !staged_) {
      return Status(Code::kDeadlineExceeded, "the state was not copied in time");
    }
  }
  return failed_;
}

std::optional<std::span<const std::byte>> Snapshot::BytesOf(std::size_t piece) const {
  switch (plan_.ways[piece]) {
    case CaptureWay::kHeld: {
      const std::string& blob = state_.entries[piece].blob;
      return std::as_bytes(std::span<const char>(blob.data(), blob.size()));
    }
    case CaptureWay::kAlias:
      return BytesOf(*state_.entries[piece].same_as);
    case CaptureWay::kStreamed:
      return std::nullopt;
    default:
      return std::as_const(memory_).BytesOf(piece);
  }
}

Status Snapshot::Read(std::size_t piece, std::int64_t offset, std::span<std::byte> packed) {
  const Reading reading(*this);
  PERDURE_RETURN_IF_ERROR(reading.status());
  const TensorView& view = state_.entries[piece].view;
  PERDURE_ASSIGN_OR_RETURN(CopyStream* const stream, streams_.saver.For(view));
  PERDURE_RETURN_IF_ERROR(
      Pack(view, offset, packed, *stream).WithContext(state_.structure[piece].name));
  PERDURE_ASSIGN_OR_RETURN(const StreamPoint point, stream->Mark());
  return stream->Wait(point, options_.deadline);
}

Result<std::string> Snapshot::DigestOf(std::size_t piece) {
  if (const auto bytes = BytesOf(piece); bytes.has_value()) return Digest(*bytes);
  std::vector<std::byte> block;
  DigestStream digest;
  const Status read = ForEachBlock(BytesIn(state_.structure[piece]), kHashBlock,
                                   [&](std::int64_t at, std::int64_t bytes) -> Status {
                                     block.resize(static_cast<std::size_t>(bytes));
                                     PERDURE_RETURN_IF_ERROR(Read(piece, at, block));
                                     digest.Add(block);
                                     return Ok();
                                   });
  PERDURE_RETURN_IF_ERROR(read);
  return digest.Finish();
}

Result<std::string> Snapshot::DigestOf(std::size_t piece, const Box& part) {
  const Piece& of = state_.structure[piece];
  PERDURE_ASSIGN_OR_RETURN(const std::vector<ByteRun> runs,
                           RunsOf(of.dtype, {of.offset, of.shape}, part, part));
  const auto staged = BytesOf(piece);
  std::vector<std::byte> block;
  DigestStream digest;
  for (const ByteRun& run : runs) {
    if (staged.has_value()) {
      digest.Add(staged->subspan(static_cast<std::size_t>(run.source),
                                 static_cast<std::size_t>(run.bytes)));
      continue;
    }
    const Status read =
        ForEachBlock(run.bytes, kHashBlock, [&](std::int64_t at, std::int64_t bytes) -> Status {
          block.resize(static_cast<std::size_t>(bytes));
          PERDURE_RETURN_IF_ERROR(Read(piece, run.source + at, block));
          digest.Add(block);
          return Ok();
        });
    PERDURE_RETURN_IF_ERROR(read);
  }
  return digest.Finish();
}

void Snapshot::EndStreaming() {
  MutexLock lock(mutex_);
  streamed_ = true;
  changed_.NotifyAll();
}

Status Snapshot::WaitSealed(Deadline deadline) {
  MutexLock lock(mutex_);
  while (failed_.ok() && !sealed_) {
    if (!changed_.WaitUntil(mutex_, deadline) && failed_.ok() && !sealed_) {
      return Status(Code::kDeadlineExceeded,
                    "the program did not reach BeforeUpdate of the next step in time, so what was "
                    "captured may not be the state of one step");
    }
  }
  return failed_;
}

void Snapshot::WaitCopier() {
  MutexLock lock(mutex_);
  while (!copier_done_) changed_.Wait(mutex_);
}

bool Snapshot::captured() const {
  MutexLock lock(mutex_);
  return captured_locked();
}

bool Snapshot::WaitCaptured(Deadline deadline) {
  MutexLock lock(mutex_);
  while (!captured_locked()) {
    if (!changed_.WaitUntil(mutex_, deadline) && !captured_locked()) return false;
  }
  return true;
}

Status Snapshot::Seal() {
  Status verdict;
  Status broken;
  for (auto piece = before_.begin(); piece != before_.end() && verdict.ok(); ++piece) {
    {
      MutexLock lock(mutex_);
      if (sealed_ || !failed_.ok()) break;
    }
    const Result<std::uint64_t> hash = HashInPlace(piece->first, streams_.training);
    verdict = hash.status();
    if (hash.ok() && *hash != piece->second) verdict = broken = Changed(piece->first);
  }
  MutexLock lock(mutex_);
  for (const auto& [stream, point] : points_) {
    const Status held = stream->HoldProgram(point);
    if (verdict.ok()) verdict = held;
  }
  if (failed_.ok()) {
    failed_ = verdict;
    sealed_ = verdict.ok();
  }
  if (broken_.ok()) broken_ = broken;
  changed_.NotifyAll();
  return broken_;
}

void Snapshot::GiveUp(const Status& why) {
  MutexLock lock(mutex_);
  if (failed_.ok() && !sealed_) failed_ = why;
  changed_.NotifyAll();
  while (reading_ > 0) changed_.Wait(mutex_);
}

}  // namespace perdure
