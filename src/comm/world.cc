#include "comm/world.h"

#include <fmt/format.h>

#include <utility>

#include "base/posix.h"
#include "comm/backends/gloo/gloo_backend.h"
#include "comm/backends/loopback/loopback_backend.h"

namespace perdure {
namespace {

std::string IdOf(const CommunicatorOptions& options) {
  return fmt::format("{}.{}", options.name, options.attempt);
}

}  // namespace

GlooOptions GlooOptionsFromEnvironment() {
  GlooOptions options;
  options.interface = GetEnv("PERDURE_COMM_IFACE").value_or("");
  options.host = GetEnv("PERDURE_COMM_HOST").value_or(options.host);
  return options;
}

Result<std::unique_ptr<Communicator>> CreateCommunicator(const CommunicatorOptions& options,
                                                         const CommunicatorParts& parts,
                                                         Deadline deadline) {
  if (options.size < 1 || options.rank < Rank(0) || options.rank >= Rank(options.size)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("communicator {}: rank {} of {} ranks does not exist", options.name,
                              options.rank.value(), options.size));
  }
  if (options.size == 1) {
    return WrapBackend(options, parts, MakeLoopbackBackend(MakeLoopbackHub(1), 0));
  }
  PERDURE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                           ConnectGlooBackend({.name = options.name,
                                               .id = IdOf(options),
                                               .rank = static_cast<int>(options.rank.value()),
                                               .size = options.size,
                                               .generation = options.generation,
                                               .interface = options.gloo.interface,
                                               .host = options.gloo.host},
                                              parts.store, parts.arbiter, deadline));
  return WrapBackend(options, parts, std::move(backend));
}

std::unique_ptr<Communicator> WrapBackend(const CommunicatorOptions& options,
                                          const CommunicatorParts& parts,
                                          std::unique_ptr<Backend> backend) {
  return std::make_unique<Communicator>(std::make_unique<CommunicatorImpl>(
      CommunicatorImpl::Place{options.name, IdOf(options), options.rank, options.size,
                              options.patience},
      std::move(backend), parts.lane, parts.recorder, parts.arbiter, parts.clock, parts.observer));
}

CommProgress ProgressOf(const Communicator& communicator) {
  return ImplOf(communicator).Progress();
}

}  // namespace perdure
