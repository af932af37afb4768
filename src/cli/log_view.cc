#include "cli/log_view.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/posix.h"
#include "supervisor/agent/rank_log.h"

namespace perdure::cli {
namespace {

// A longer line is shown in pieces.
constexpr std::size_t kLineBytesMax = 4096;
// Of one file at a time, so that a flood of one rank does not hide the others.
constexpr int kReadsPerPoll = 16;

}  // namespace

LogView::LogView(std::string state_directory) : state_(std::move(state_directory)) {
  ForEachLog([this](const std::string& path, int) {
    struct stat about {};
    if (::stat(path.c_str(), &about) == 0) files_[path].offset = about.st_size;
  });
}

void LogView::ForEachLog(
    const std::function<void(const std::string& path, int rank)>& visit) const {
  namespace fs = std::filesystem;
  std::error_code error;
  for (fs::directory_iterator generation(state_ + "/logs", error), end; !error && generation != end;
       generation.increment(error)) {
    if (generation->path().filename().string()[0] != 'g') continue;
    std::error_code inner;
    for (fs::directory_iterator file(generation->path(), inner); !inner && file != end;
         file.increment(inner)) {
      const std::string name = file->path().filename().string();
      if (name.rfind("rank-", 0) != 0) continue;
      visit(file->path().string(), static_cast<int>(std::strtol(name.c_str() + 5, nullptr, 10)));
    }
  }
}

void LogView::ReadNew(const std::string& path, int rank, const Show& show) {
  File& file = files_[path];
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0 || about.st_size <= file.offset) return;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return;
  char buffer[65536];
  for (int i = 0; i < kReadsPerPoll; ++i) {
    const ssize_t got = ::pread(fd.get(), buffer, sizeof(buffer), file.offset);
    if (got <= 0) return;
    file.offset += got;
    for (const char byte : std::string_view(buffer, static_cast<std::size_t>(got))) {
      if (byte != '\n' && file.partial.size() < kLineBytesMax) {
        file.partial += byte;
        continue;
      }
      if (rank == 0 || agent::LooksLikeError(file.partial)) show(rank, file.partial);
      file.partial.clear();
      if (byte != '\n') file.partial += byte;
    }
  }
}

void LogView::Poll(const Show& show) {
  ForEachLog([&](const std::string& path, int rank) { ReadNew(path, rank, show); });
}

void LogView::Finish(const Show& show) {
  Poll(show);
  ForEachLog([&](const std::string& path, int rank) {
    File& file = files_[path];
    if (file.partial.empty()) return;
    if (rank == 0 || agent::LooksLikeError(file.partial)) show(rank, file.partial);
    file.partial.clear();
  });
}

}  // namespace perdure::cli
