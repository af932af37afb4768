// The smallest Perdure program: the ranks add up their numbers.
//
//   build/bin/all_reduce                          alone: one rank
//   examples/ranks.sh 4 build/bin/all_reduce      four ranks, started as torchrun would start them
//   torchrun --no-python --nproc-per-node 4 build/bin/all_reduce
//
// Next: 02_deadline.cc, where one of them does not come.
#include <perdure/perdure.h>

#include <chrono>
#include <cstdio>
#include <vector>

using namespace std::chrono_literals;

int main(int argc, char** argv) {
  // Run joins the job, calls the body, and leaves the job with what the body returned.
  return perdure::Run(argc, argv, [](perdure::Session& session) -> perdure::Status {
    const auto rank = static_cast<float>(session.rank().value());
    const auto size = static_cast<float>(session.world_size());

    // Every rank brings [rank, 1, 1, …]. Memory stays the program's own: Perdure sees a view of it.
    std::vector<float> numbers(1000, 1.0F);
    numbers[0] = rank;
    const perdure::TensorView view{numbers.data(), perdure::DType::kF32, {1000}};

    // Collectives are asynchronous and always bounded: they end by their deadline, done or failed.
    const auto work =
        session.world().AllReduce(view, perdure::ReduceOp::kSum, perdure::Deadline::After(30s));
    // … compute something else meanwhile …
    PERDURE_RETURN_IF_ERROR(work->Wait(perdure::Deadline::After(60s)));

    const float ranks_summed = size * (size - 1) / 2;
    if (numbers[0] != ranks_summed || numbers[999] != size) {
      return {perdure::Code::kInternal, "the sum is wrong"};
    }
    std::printf("rank %g of %g: the ranks add up to %g\n", rank, size, numbers[0]);
    return perdure::Ok();
  });
}
