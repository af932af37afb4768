// The twin of cuda_device.cc for builds without CUDA's headers.
#include "device/cuda/cuda_device.h"

namespace perdure {

Result<std::unique_ptr<Device>> OpenCudaDevice(int /*index*/, void* /*program_stream*/) {
  return Status(Code::kUnimplemented,
                "this build of Perdure has no CUDA: cuda.h was not found when it was configured; "
                "install the CUDA toolkit's headers (or set CUDA_HOME) and build it again");
}

}  // namespace perdure
