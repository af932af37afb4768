// A job as seen from the command line: the running supervisor where it answers, else its journal.
#pragma once

#include <memory>
#include <string>

#include "control/job_control.h"
#include "perdure/status.h"
#include "wire/control_client.h"

namespace perdure::cli {

// Who does not answer within this is treated as not there.
inline constexpr Duration kAnswerPatience = std::chrono::seconds(3);

// Connects to the supervisor of a state directory. kUnavailable: none is running, as far as the
// directory says; the first call tells whether it answers.
Result<std::unique_ptr<wire::GrpcJobControl>> DialSupervisor(const std::string& state_directory,
                                                             Duration patience = kAnswerPatience);

// For people: what to say when nobody answers.
Status NobodyAnswers(const Status& why);

}  // namespace perdure::cli
