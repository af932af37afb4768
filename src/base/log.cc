#include "base/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <cstdlib>
#include <memory>

namespace perdure {
namespace {

std::string PatternFor(const std::string& name) {
  const std::string who = name.empty() ? "perdure" : fmt::format("perdure {}", name);
  return fmt::format("%Y-%m-%dT%H:%M:%S.%e {} %l: %v", who);
}

void SetLevel(spdlog::logger& logger, spdlog::level::level_enum otherwise) {
  const char* level = std::getenv("PERDURE_LOG_LEVEL");
  logger.set_level(level == nullptr ? otherwise : spdlog::level::from_str(level));
}

// Never destroyed: threads that outlive main may still log.
spdlog::logger* MakeLogger() {
  auto* logger = new spdlog::logger("perdure", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern(PatternFor(""));
  SetLevel(*logger, spdlog::level::info);
  logger->flush_on(spdlog::level::trace);
  return logger;
}

}  // namespace

spdlog::logger& Log() {
  static spdlog::logger* const logger = MakeLogger();
  return *logger;
}

void QuietLog() {
  SetLevel(Log(), spdlog::level::warn);
}

void SetLogName(const std::string& name) {
  Log().set_pattern(PatternFor(name));
}

}  // namespace perdure
