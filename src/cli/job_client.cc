#include "cli/job_client.h"

#include <fmt/format.h>

#include "supervisor/launch/address_file.h"

namespace perdure::cli {

Result<std::unique_ptr<wire::GrpcJobControl>> DialSupervisor(const std::string& state_directory,
                                                             Duration patience) {
  const Result<launch::SupervisorAddress> file = launch::ReadAddressFile(state_directory);
  if (!file.ok()) {
    return Status(Code::kUnavailable,
                  fmt::format("no supervisor is running for {}", state_directory));
  }
  return std::make_unique<wire::GrpcJobControl>(file->address, file->token, patience);
}

Status NobodyAnswers(const Status& why) {
  if (why.code() != Code::kUnavailable && why.code() != Code::kDeadlineExceeded) return why;
  return Status(
      Code::kUnavailable,
      fmt::format("the supervisor does not answer ({}); perdure status shows what its journal "
                  "says, perdure run continues the job",
                  why.message()));
}

}  // namespace perdure::cli
