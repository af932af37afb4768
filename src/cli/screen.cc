#include "cli/screen.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

namespace perdure::cli {
namespace {

constexpr Duration kPlainEvery = std::chrono::seconds(10);

}  // namespace

std::string ProgressLine(const std::string& status_json) {
  const auto status = nlohmann::json::parse(status_json, nullptr, false);
  if (!status.is_object()) return "";
  const auto number = [](const nlohmann::json& object, const char* key) -> const nlohmann::json* {
    const auto found = object.find(key);
    return found != object.end() && found->is_number() ? &*found : nullptr;
  };
  const auto* generation = number(status, "generation");
  if (generation == nullptr || generation->get<std::int64_t>() < 1) return "";
  std::vector<std::string> parts;
  if (const auto* step = number(status, "step");
      step != nullptr && step->get<std::int64_t>() >= 0) {
    parts.push_back(fmt::format("step {}", step->get<std::int64_t>()));
  } else {
    parts.push_back(status.value("state", "starting"));
  }
  if (const auto* loss = number(status, "loss")) {
    parts.push_back(fmt::format("loss {:.4f}", loss->get<double>()));
  }
  if (const auto* speed = number(status, "steps_per_second")) {
    parts.push_back(fmt::format("{:.1f} step/s", speed->get<double>()));
  }
  if (const auto* ettr = number(status, "ettr")) {
    parts.push_back(fmt::format("ETTR {:.1f} %", ettr->get<double>() * 100));
  }
  const auto checkpoint = status.find("last_checkpoint");
  if (checkpoint != status.end() && checkpoint->is_object()) {
    parts.push_back(fmt::format("checkpoint {}, {:.0f} s ago", checkpoint->value("step", -1),
                                checkpoint->value("age_seconds", 0.0)));
  }
  parts.push_back(fmt::format("generation {}", generation->get<std::int64_t>()));
  return fmt::format("{}", fmt::join(parts, " | "));
}

void Screen::Clear() {
  if (!drawn_) return;
  fmt::print("\r\033[K");
  drawn_ = false;
  std::fflush(stdout);
}

void Screen::Draw() {
  if (!terminal_ || progress_.empty()) return;
  const std::size_t width = columns_ > 1 ? static_cast<std::size_t>(columns_ - 1) : 79;
  fmt::print("\r\033[K{}", progress_.substr(0, width));
  drawn_ = true;
}

void Screen::Line(std::string_view line) {
  if (drawn_) fmt::print("\r\033[K");
  drawn_ = false;
  fmt::print("{}\n", line);
  Draw();
  std::fflush(stdout);
}

void Screen::Progress(const std::string& line, MonotonicTime now) {
  if (line.empty()) return;
  if (terminal_) {
    if (line == progress_ && drawn_) return;
    progress_ = line;
    Draw();
    std::fflush(stdout);
    return;
  }
  if (now < next_plain_ || line == progress_) return;
  progress_ = line;
  next_plain_ = now + kPlainEvery;
  fmt::print("perdure: {}\n", line);
  std::fflush(stdout);
}

}  // namespace perdure::cli
