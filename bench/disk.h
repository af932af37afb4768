// What the disk benchmarks share: the same bytes for everyone, and fio as the limit.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/shard.h"
#include "perdure/status.h"

namespace perdure::bench {

// Ends the program with the error.
void Need(const Status& status);

double SecondsSince(std::chrono::steady_clock::time_point begin);

// About as a training state is: a few large tensors of odd sizes, and many small ones.
class DiskState {
 public:
  explicit DiskState(std::int64_t about_bytes);
  std::vector<ShardContent> Contents() const;
  const std::vector<ShardPiece>& pieces() const { return pieces_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::vector<ShardPiece> pieces_;
  std::vector<std::vector<std::byte>> memory_;
  std::int64_t bytes_ = 0;
};

// A directory of this run below $PERDURE_BENCH_DIR, else the temporary directory; removed at the
// end.
class DiskDirectory {
 public:
  DiskDirectory();
  ~DiskDirectory();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The size of the state: $PERDURE_BENCH_BYTES, else 1 GiB.
std::int64_t BenchBytes();

// One sequential pass of fio over `file` with O_DIRECT by io_uring, blocks and depth as DirectFiles
// has them: GB/s. Writing makes the file, and syncs it at the end.
double Fio(const std::string& verb, const std::string& file, std::int64_t bytes);
extern const char* const kFioIs;

// Waits until the file system below `path` has nothing more to do: what was removed a moment ago is
// given back to the disk by and by (TRIM), and whoever came next would pay. At most a few seconds.
void SettleDisk(const std::string& path);

// Touches so much memory and gives it back. A virtual machine may get its memory from its host only
// when it is touched for the first time, ten times slower than later: whoever came first would pay.
void WarmMemory(std::int64_t bytes);

// Drops what the page cache holds of a file, so that everyone reads from the disk; ends the program
// when it does not go.
void ForgetCached(const std::string& file);

}  // namespace perdure::bench
