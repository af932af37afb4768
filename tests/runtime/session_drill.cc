// A small training program for the session tests: no tensors of any framework, a state that every
// rank can check by arithmetic, and faults on request.
//
//   session_drill --steps N [--pause-ms N] [--fault KIND --at STEP --rank R [--again yes]]
//
// KIND: throw, error, kill, sigterm, fork, spin (an endless loop). The fault happens in the first
// generation, with --again in each.
//
// Each step averages (rank + step) over the ranks and adds it to the weights, so after step s every
// weight is sum over steps of (step + (world - 1) / 2).
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "perdure/perdure.h"

namespace {

class Weights final : public perdure::Stateful {
 public:
  perdure::Result<perdure::State> Describe() override {
    perdure::State state;
    perdure::TensorEntry entry;
    entry.name = "w";
    entry.view.data = values.data();
    entry.view.dtype = perdure::DType::kF64;
    entry.view.shape = {static_cast<std::int64_t>(values.size())};
    state.tensors.push_back(entry);
    return state;
  }
  std::vector<double> values = std::vector<double>(1000, 0.0);
};

perdure::Status Train(perdure::Session& session, std::map<std::string, std::string> args) {
  const std::int64_t steps = std::stoll(args["steps"]);
  const std::int64_t fault_at = args.count("at") ? std::stoll(args["at"]) : -1;
  const bool fault_here = args.count("fault") &&
                          std::stoll(args["rank"]) == session.rank().value() &&
                          (session.generation().value() == 1 || args.count("again"));
  const auto pause_us =
      static_cast<useconds_t>(args.count("pause-ms") ? std::stoll(args["pause-ms"]) * 1000 : 0);
  auto owned = std::make_unique<Weights>();
  Weights& weights = *owned;
  session.checkpointer().Add("model", std::move(owned));
  PERDURE_ASSIGN_OR_RETURN(const perdure::RestoreReport restored, session.checkpointer().Restore());
  std::printf("rank %lld generation %lld begins at %lld\n",
              static_cast<long long>(session.rank().value()),
              static_cast<long long>(session.generation().value()),
              static_cast<long long>(restored.next_step));
  std::fflush(stdout);

  for (std::int64_t step = restored.next_step; step < steps; ++step) {
    perdure::StepScope scope = session.BeginStep(step);
    std::vector<double> gradient(1000, static_cast<double>(session.rank().value() + step));
    perdure::TensorView view;
    view.data = gradient.data();
    view.dtype = perdure::DType::kF64;
    view.shape = {1000};
    if (fault_here && step == fault_at) {
      if (args["fault"] == "throw") throw std::runtime_error("the data is cursed");
      if (args["fault"] == "error")
        return perdure::Status(perdure::Code::kUserError, "no more luck");
      if (args["fault"] == "kill") ::raise(SIGKILL);
      if (args["fault"] == "spin") {
        for (volatile bool forever = true; forever;) {
        }
      }
      if (args["fault"] == "sigterm") ::kill(::getpid(), SIGTERM);
      if (args["fault"] == "fork") {
        const pid_t child = ::fork();
        if (child == 0) ::_exit(scope.End().code() == perdure::Code::kFailedPrecondition ? 0 : 1);
        int status = 0;
        ::waitpid(child, &status, 0);
        if (status != 0)
          return perdure::Status(perdure::Code::kInternal, "the child was not inert");
      }
    }
    PERDURE_RETURN_IF_ERROR(
        session.world()
            .AllReduce(view, perdure::ReduceOp::kAverage, session.world().DefaultDeadline())
            ->Wait(session.world().DefaultDeadline()));
    PERDURE_RETURN_IF_ERROR(scope.BeforeUpdate());
    for (std::size_t i = 0; i < weights.values.size(); ++i) weights.values[i] += gradient[i];
    perdure::StepMetrics metrics;
    metrics.loss = weights.values[0];
    PERDURE_RETURN_IF_ERROR(scope.End(metrics));
    ::usleep(pause_us);  // stands for compute
  }

  double expected = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    expected += static_cast<double>(step) + (session.world_size() - 1) / 2.0;
  }
  if (weights.values[999] != expected) {
    return perdure::Status(perdure::Code::kInternal, "the weights are wrong");
  }
  std::printf("rank %lld done\n", static_cast<long long>(session.rank().value()));
  return perdure::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> args;
  for (int i = 1; i + 1 < argc; i += 2) args[std::string(argv[i]).substr(2)] = argv[i + 1];
  return perdure::Run(argc, argv, [&](perdure::Session& session) { return Train(session, args); });
}
