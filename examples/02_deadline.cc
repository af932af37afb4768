// A peer that never calls: what the others see.
//
//   examples/ranks.sh 3 build/bin/deadline
//
// The last rank stays away from an all_reduce, as a rank does that loops, swaps or waits for a
// disk. Nobody hangs: after two seconds the others get an error that names it, and the late rank,
// when it comes, learns that it is late.
#include <perdure/perdure.h>

#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

namespace {

// The failure is a value: a class to branch on, and suspects with evidence for people.
void Print(perdure::Rank rank, const perdure::Status& status) {
  std::printf("rank %lld: %s\n", static_cast<long long>(rank.value()), status.ToString().c_str());
  const perdure::CommFailure* const failure = status.comm_failure();
  if (failure == nullptr) return;
  std::printf("rank %lld: class %s, operation %s number %llu\n",
              static_cast<long long>(rank.value()),
              std::string(perdure::NameOf(failure->failure_class)).c_str(),
              failure->operation.c_str(), static_cast<unsigned long long>(failure->sequence));
  for (const perdure::CommFailure::Suspect& suspect : failure->suspects) {
    std::printf("rank %lld: suspects rank %lld: %s\n", static_cast<long long>(rank.value()),
                static_cast<long long>(suspect.rank.value()), suspect.evidence.c_str());
  }
}

bool Names(const perdure::Status& status, perdure::Rank culprit) {
  const perdure::CommFailure* const failure = status.comm_failure();
  return failure != nullptr && failure->suspects.size() == 1 &&
         failure->suspects[0].rank == culprit;
}

}  // namespace

int main(int argc, char** argv) {
  return perdure::Run(argc, argv, [](perdure::Session& session) -> perdure::Status {
    if (session.world_size() < 2) {
      return {perdure::Code::kInvalidArgument,
              "this example needs at least 2 ranks: examples/ranks.sh 3 build/bin/deadline"};
    }
    const perdure::Rank absent(session.world_size() - 1);
    std::vector<float> numbers(1000, 1.0F);
    const perdure::TensorView view{numbers.data(), perdure::DType::kF32, {1000}};

    // Once together, so that everybody is known to be there.
    const perdure::Deadline first = perdure::Deadline::After(30s);
    PERDURE_RETURN_IF_ERROR(
        session.world().AllReduce(view, perdure::ReduceOp::kSum, first)->Wait(first));

    if (session.rank() == absent) {
      // Busy with something else for longer than the others have patience.
      std::this_thread::sleep_for(4s);
    }

    // The operation ends after two seconds, done or failed. The wait only has to outlive that.
    const auto work =
        session.world().AllReduce(view, perdure::ReduceOp::kSum, perdure::Deadline::After(2s));
    const perdure::Status status = work->Wait(perdure::Deadline::After(20s));
    Print(session.rank(), status);
    if (status.ok()) return {perdure::Code::kInternal, "an all_reduce without all ranks succeeded"};
    if (session.rank() != absent && !Names(status, absent)) {
      return {perdure::Code::kInternal, "the failure does not name the rank that stayed away"};
    }
    // A training program would return `status` here: the supervisor then starts the next
    // generation.
    return perdure::Ok();
  });
}
