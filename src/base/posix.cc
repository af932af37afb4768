#include "base/posix.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "base/parse.h"

namespace perdure {
namespace {

Code CodeOf(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return Code::kNotFound;
    case EEXIST:
    case ENOTEMPTY:
      return Code::kAlreadyExists;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return Code::kResourceExhausted;
    case EACCES:
    case EPERM:
    case EROFS:
    case EINVAL:
    case EXDEV:
      return Code::kFailedPrecondition;
    default:
      return Code::kUnavailable;
  }
}

}  // namespace

void UniqueFd::Reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Status ErrnoStatus(int error, std::string_view doing) {
  return Status(CodeOf(error),
                fmt::format("{}: {}", doing, std::generic_category().message(error)));
}

std::optional<std::string> GetEnv(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

Result<std::optional<std::int64_t>> GetEnvInt(const std::string& name) {
  const std::optional<std::string> text = GetEnv(name);
  if (!text.has_value() || text->empty()) return std::optional<std::int64_t>();
  const std::optional<std::int64_t> value = ParseInteger(*text);
  if (!value.has_value()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("environment variable {}=\"{}\" is not a whole number", name, *text));
  }
  return value;
}

std::string RandomHex(int bytes) {
  std::vector<unsigned char> buffer(static_cast<std::size_t>(bytes));
  std::size_t have = 0;
  while (have < buffer.size()) {
    const ssize_t got = ::getrandom(buffer.data() + have, buffer.size() - have, 0);
    PERDURE_CHECK(got > 0 || errno == EINTR, "the kernel gives no random bytes");
    if (got > 0) have += static_cast<std::size_t>(got);
  }
  std::string hex;
  for (const unsigned char byte : buffer) hex += fmt::format("{:02x}", byte);
  return hex;
}

std::uint64_t RandomU64() {
  return std::stoull(RandomHex(8), nullptr, 16);
}

Result<std::string> ReadSmallFile(const std::string& path, std::size_t bytes_max) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t got = ::read(fd.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, fmt::format("read {}", path));
    if (got == 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
    if (text.size() > bytes_max) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{} is larger than {} bytes", path, bytes_max));
    }
  }
}

std::string FormatWallTime(std::chrono::system_clock::time_point time) {
  const auto since_epoch =
      std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  const std::time_t seconds = static_cast<std::time_t>(since_epoch / 1000);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:03d}Z", text, static_cast<int>(since_epoch % 1000));
}

}  // namespace perdure
