#include <perdure/perdure.h>

#include <chrono>
#include <cstdio>

int main(int argc, char** argv) {
  return perdure::Run(argc, argv, [](perdure::Session& session) -> perdure::Status {
    float value = 3;
    const auto deadline = perdure::Deadline::After(std::chrono::seconds(10));
    PERDURE_RETURN_IF_ERROR(
        session.world()
            .AllReduce({&value, perdure::DType::kF32, {1}}, perdure::ReduceOp::kSum, deadline)
            ->Wait(deadline));
    std::printf("%d rank, sum %g\n", session.world_size(), value);
    return perdure::Ok();
  });
}
