// The direct way into one file, if there is one: a second descriptor with O_DIRECT, the alignment,
// and a lane of blocks. Shared by the direct writer and the direct reader.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/posix.h"
#include "storage/direct_files.h"
#include "storage/io_lane.h"

namespace perdure {

class DirectPath {
 public:
  // `plain` is the file already opened with `flags` at `path`. Nothing when this file takes the
  // plain way; the reason has then been noted in `choice`.
  static std::unique_ptr<DirectPath> Open(int plain, const std::string& path, int flags,
                                          const DirectOptions& options, DirectChoice& choice);

  int fd() const { return fd_.get(); }
  // Offsets and lengths are multiples of this; at least a page.
  std::int64_t alignment() const { return alignment_; }
  IoLane& lane() { return *lane_; }

  // Whether `error` means that requests of this kind are not served here; notes it.
  bool Refuses(int error);

 private:
  DirectPath(UniqueFd fd, std::int64_t alignment, std::unique_ptr<IoLane> lane,
             DirectChoice& choice, std::uint64_t device, std::string path)
      : fd_(std::move(fd)),
        alignment_(alignment),
        lane_(std::move(lane)),
        choice_(choice),
        device_(device),
        path_(std::move(path)) {}

  UniqueFd fd_;
  const std::int64_t alignment_;
  std::unique_ptr<IoLane> lane_;  // goes first: its requests use the descriptor
  DirectChoice& choice_;
  const std::uint64_t device_;
  const std::string path_;
};

// Constructed by DirectFiles; `fd` is the plain descriptor.
std::unique_ptr<WritableFile> MakeDirectWriter(UniqueFd fd, std::string path,
                                               const DirectOptions& options, DirectChoice& choice);
std::unique_ptr<ReadableFile> MakeDirectReader(UniqueFd fd, std::string path,
                                               const DirectOptions& options, DirectChoice& choice);

}  // namespace perdure
