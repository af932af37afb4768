#include <cstdio>
#include <exception>

#include "base/posix.h"
#include "perdure/session.h"

namespace perdure {
namespace {

constexpr int kExitWrongEnvironment = 2;

// User code may throw; what it threw becomes its failure, text and all.
Status RunBody(const std::function<Status(Session&)>& body, Session& session) {
  try {
    return body(session);
  } catch (const std::exception& error) {
    return Status(Code::kUserError, error.what());
  } catch (...) {
    return Status(Code::kUserError, "the training body threw something that is no std::exception");
  }
}

}  // namespace

int Run(int argc, char** argv, const std::function<Status(Session&)>& body) {
  const char* program = argc > 0 ? argv[0] : "perdure";
  Result<std::unique_ptr<Session>> session = Session::Open(SessionOptions());
  if (!session.ok()) {
    const Status& why = session.status();
    std::fprintf(stderr, "%s: error: %s\n", program, why.message().c_str());
    return why.code() == Code::kInvalidArgument ? kExitWrongEnvironment : 1;
  }
  const Status status = RunBody(body, **session);
  if (!status.ok() && status.code() != Code::kPreempted) {
    std::fprintf(stderr, "%s: error: %s\n", program, status.message().c_str());
  }
  return (*session)->Close(status);
}

}  // namespace perdure
