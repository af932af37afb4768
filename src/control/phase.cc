#include "perdure/health.h"

namespace perdure {

std::string_view NameOf(Phase phase) {
  switch (phase) {
    case Phase::kInit:
      return "init";
    case Phase::kRestore:
      return "restore";
    case Phase::kData:
      return "data";
    case Phase::kCompute:
      return "compute";
    case Phase::kComm:
      return "comm";
    case Phase::kUpdate:
      return "update";
    case Phase::kCheckpoint:
      return "checkpoint";
    case Phase::kEval:
      return "eval";
    case Phase::kIdle:
      return "idle";
  }
  return "unknown";
}

}  // namespace perdure
