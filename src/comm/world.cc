#include "comm/world.h"

#include <fmt/format.h>

#include <utility>

#include "base/posix.h"
#include "comm/backends/loopback/loopback_backend.h"

namespace perdure {
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
  Group group{.name = options.name,
              .id = fmt::format("{}.{}", options.name, options.attempt),
              .rank = static_cast<int>(options.rank.value()),
              .members = {},
              .generation = options.generation};
  for (int rank = 0; rank < options.size; ++rank) group.members.emplace_back(rank);
  CommunicatorParts connecting = parts;
  if (!connecting.connect) {
    connecting.connect = [gloo = options.gloo, &store = parts.store, &arbiter = parts.arbiter](
                             const Group& members, Deadline until) {
      return ConnectGlooBackend(members, gloo, store, arbiter, until);
    };
  }
  return ConnectGroup(std::move(group), options.patience, connecting, deadline);
}

Result<std::unique_ptr<Communicator>> ConnectGroup(Group group, const Patience& patience,
                                                   const CommunicatorParts& parts,
                                                   Deadline deadline) {
  std::unique_ptr<Backend> backend;
  if (group.size() == 1) {
    backend = MakeLoopbackBackend(MakeLoopbackHub(1), 0);
  } else {
    PERDURE_ASSIGN_OR_RETURN(backend, parts.connect(group, deadline));
  }
  return std::make_unique<Communicator>(
      std::make_unique<CommunicatorImpl>(std::move(group), patience, std::move(backend), parts));
}

CommProgress ProgressOf(const Communicator& communicator) {
  return ImplOf(communicator).progress();
}

}  // namespace perdure
