// What this process says it is doing. The supervisor judges silence by phase: a save may take
// minutes, a step may not.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "perdure/export.h"

namespace perdure {

enum class Phase : std::uint8_t {
  kInit,
  kRestore,
  kData,
  kCompute,
  kComm,
  kUpdate,
  kCheckpoint,
  kEval,
  kIdle,
};

// "init", "restore", …
PERDURE_API std::string_view NameOf(Phase phase);

// The process is in a phase until this goes out of scope; then it is back in the one before.
class PERDURE_API PhaseScope {
 public:
  class Impl;
  explicit PhaseScope(std::unique_ptr<Impl> impl);
  ~PhaseScope();
  PhaseScope(PhaseScope&&) noexcept;
  PhaseScope& operator=(PhaseScope&&) noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace perdure
