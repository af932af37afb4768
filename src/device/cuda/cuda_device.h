// CUDA devices, where this build and this machine have them. The driver is taken at run time, so a
// program starts without one, and asks for one only when it saves memory that lies on a GPU.
#pragma once

#include <memory>

#include "device/device.h"
#include "perdure/status.h"

namespace perdure {

// Copies on a stream of its own into pinned host memory, ordered by events. `program_stream` (a
// CUstream or cudaStream_t) is where the program changes its state; null is the default stream.
// Uses the device's primary context, which is the CUDA runtime's and PyTorch's. kUnimplemented says
// what is missing.
Result<std::unique_ptr<Device>> OpenCudaDevice(int index, void* program_stream);

}  // namespace perdure
