#include "cli/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace perdure::cli {
namespace {

constexpr Duration kDrawEvery = std::chrono::milliseconds(100);
constexpr int kBarColumnsMax = 40;

}  // namespace

std::string HumanBytes(std::int64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

std::string ProgressBarLine(const std::string& doing, std::int64_t done, std::int64_t total,
                            int columns) {
  done = std::clamp<std::int64_t>(done, 0, std::max<std::int64_t>(total, 0));
  const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0;
  const std::string facts =
      fmt::format("{:3.0f} %  {} of {}", share * 100, HumanBytes(done), HumanBytes(total));
  const int room = columns - static_cast<int>(doing.size() + facts.size()) - 7;
  if (room < 4) return fmt::format("{}  {}", doing, facts).substr(0, std::max(columns, 0));
  const int wide = std::min(room, kBarColumnsMax);
  const int full = static_cast<int>(share * wide);
  return fmt::format("{}  [{}{}]  {}", doing, std::string(static_cast<std::size_t>(full), '='),
                     std::string(static_cast<std::size_t>(wide - full), ' '), facts);
}

ProgressBar::ProgressBar(std::string doing)
    : doing_(std::move(doing)), terminal_(::isatty(STDERR_FILENO) == 1) {
  winsize size{};
  if (terminal_ && ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    columns_ = size.ws_col;
  }
}

ProgressBar::~ProgressBar() {
  if (drawn_) fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

void ProgressBar::Show(std::int64_t done, std::int64_t total) {
  if (!terminal_ || RealClock().Now() < next_) return;
  next_ = RealClock().Now() + kDrawEvery;
  drawn_ = true;
  fmt::print(stderr, "\r{}\x1b[K", ProgressBarLine(doing_, done, total, columns_ - 1));
  std::fflush(stderr);
}

}  // namespace perdure::cli
