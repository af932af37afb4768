// The corners of POSIX that everybody needs: owned descriptors, errors with text, the environment.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "perdure/status.h"

namespace perdure {

// Owns a file descriptor. Closing ignores errors: who cares for them closes by hand with Release().
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(other.Release());
    return *this;
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

// The Status for a failed system call: "open /x/y: No space left on device". The code follows
// errno.
Status ErrnoStatus(int error, std::string_view doing);

// An environment variable; nullopt when unset.
std::optional<std::string> GetEnv(const std::string& name);
// The same as a number; an error that names variable and value when it is not one.
Result<std::optional<std::int64_t>> GetEnvInt(const std::string& name);

// Lower-case hex of `bytes` random bytes from the kernel.
std::string RandomHex(int bytes);
std::uint64_t RandomU64();

// Whole file; for files known to be small.
Result<std::string> ReadSmallFile(const std::string& path, std::size_t bytes_max = 16u << 20);

// RFC 3339 in UTC with milliseconds: "2026-01-31T12:00:00.123Z".
std::string FormatWallTime(std::chrono::system_clock::time_point time);

}  // namespace perdure
