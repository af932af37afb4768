// What differs between the versions of libtorch that the adapter works with (1.13 and later), in
// one place.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/version.h>

#if TORCH_VERSION_MAJOR < 2
#include <c10/util/C++17.h>
#endif

namespace perdure::torch {

// The key of a parameter in Optimizer::state(): its address as text before 2.0, as a pointer since.
inline auto StateKey(const at::Tensor& parameter) {
#if TORCH_VERSION_MAJOR < 2
  return c10::guts::to_string(parameter.unsafeGetTensorImpl());
#else
  return static_cast<void*>(parameter.unsafeGetTensorImpl());
#endif
}

}  // namespace perdure::torch
