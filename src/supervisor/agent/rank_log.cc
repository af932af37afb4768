#include "supervisor/agent/rank_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <filesystem>

namespace perdure::agent {
namespace {

constexpr off_t kTailBytes = 64 << 10;
constexpr std::size_t kLineBytesMax = 500;

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

std::string_view Trim(std::string_view line) {
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())))
    line.remove_suffix(1);
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.front())))
    line.remove_prefix(1);
  return line;
}

}  // namespace

std::string RankLogPath(const std::string& state_directory, Generation generation, Rank rank) {
  return fmt::format("{}/logs/g{}/rank-{}.log", state_directory, generation.value(), rank.value());
}

Result<UniqueFd> OpenRankLog(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return ErrnoStatus(error.value(), fmt::format("making the directory of {}", path));
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  return fd;
}

bool LooksLikeError(std::string_view line) {
  static constexpr std::array<std::string_view, 11> kWords = {
      "error",     "exception",          "fatal",    "what():",         "panic", "abort", "failed",
      "not found", "segmentation fault", "critical", "terminate called"};
  const std::string lower = Lower(line);
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view word) { return lower.find(word) != std::string::npos; });
}

std::string PickErrorLine(std::string_view text) {
  std::string_view last;
  while (!text.empty()) {
    const std::size_t newline = text.rfind('\n');
    const std::size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    const std::string_view line = Trim(text.substr(begin));
    text = begin == 0 ? std::string_view() : text.substr(0, begin - 1);
    if (line.empty()) continue;
    if (last.empty()) last = line;
    if (!LooksLikeError(line)) continue;
    last = line;
    break;
  }
  return std::string(last.substr(0, kLineBytesMax));
}

std::string LastErrorLine(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat about {};
  if (!fd.valid() || ::fstat(fd.get(), &about) != 0) return "";
  const off_t begin = std::max<off_t>(0, about.st_size - kTailBytes);
  std::string tail(static_cast<std::size_t>(about.st_size - begin), '\0');
  const ssize_t got = ::pread(fd.get(), tail.data(), tail.size(), begin);
  if (got <= 0) return "";
  tail.resize(static_cast<std::size_t>(got));
  return PickErrorLine(tail);
}

}  // namespace perdure::agent
