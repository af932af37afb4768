// Perdure for libtorch programs: tensors, modules, optimizers and random numbers as checkpointed
// state, and gradients averaged over ranks. The only public header that includes libtorch (1.13 and
// later). Exceptions of libtorch become Status; nothing here throws.
//
// Since this namespace is called perdure::torch, `using namespace perdure` at file scope would make
// a plain `torch::` ambiguous: name what you use instead.
//
// Bit-identical runs need the same number of threads in every run (at::set_num_threads, or
// OMP_NUM_THREADS): libtorch and its BLAS split sums by it. They also need the same libtorch build
// and processor family, and operations without nondeterministic kernels.
#pragma once

#include <torch/data/example.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "perdure/comm.h"
#include "perdure/export.h"
#include "perdure/session.h"
#include "perdure/status.h"
#include "perdure/tensor.h"

namespace perdure::torch {

// The memory of `tensor`, strided or packed. Valid while the tensor keeps its storage. An error for
// what is not plain memory (undefined, sparse, quantized, lazily conjugated or negated) and for a
// dtype that the safetensors format has no name for.
PERDURE_API Result<TensorView> ViewOf(const at::Tensor& tensor);

// The parameters (Changes::kInUpdate) and buffers (kAtAnyTime) of a module, named as by
// named_parameters() and named_buffers(). A tensor that is registered under several names is saved
// once, under the first; the checkpoint knows the others as its aliases. Every rank is taken to
// hold the same values.
PERDURE_API std::unique_ptr<Stateful> StateOf(std::shared_ptr<::torch::nn::Module> module);
// Borrows the module, which must outlive the session.
PERDURE_API std::unique_ptr<Stateful> StateOf(::torch::nn::Module& module);
template <class Module>
std::unique_ptr<Stateful> StateOf(const ::torch::nn::ModuleHolder<Module>& holder) {
  return StateOf(holder.is_empty() ? nullptr : std::shared_ptr<::torch::nn::Module>(holder.ptr()));
}

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// The parameters of a module, each once, under its first name. Those of several modules can be put
// into one list. Empty when the module cannot list them.
PERDURE_API NamedTensors ParametersOf(const ::torch::nn::Module& module);
template <class Module>
NamedTensors ParametersOf(const ::torch::nn::ModuleHolder<Module>& holder) {
  return holder.is_empty() ? NamedTensors{} : ParametersOf(*holder.ptr());
}

// The state of an AdamW, Adam or SGD optimizer, borrowed: it must outlive the session. Tensors are
// named "exp_avg.<parameter>", "momentum_buffer.<parameter>", …; step counts are a blob "steps",
// learning rates and all other options a blob "param_groups", which a restore puts back (set an
// option after Restore to change it). What the optimizer creates at its first step is created when
// it is restored, and dropped when the checkpoint has none of it.
//
// With a module or names, parameters carry their names, so the checkpoint can be read by people and
// does not depend on the order of parameters. Without, they are "<group>.<index>".
PERDURE_API std::unique_ptr<Stateful> StateOf(::torch::optim::Optimizer& optimizer);
PERDURE_API std::unique_ptr<Stateful> StateOf(::torch::optim::Optimizer& optimizer,
                                              NamedTensors names);
inline std::unique_ptr<Stateful> StateOf(::torch::optim::Optimizer& optimizer,
                                         const ::torch::nn::Module& module) {
  return StateOf(optimizer, ParametersOf(module));
}
template <class Module>
std::unique_ptr<Stateful> StateOf(::torch::optim::Optimizer& optimizer,
                                  const ::torch::nn::ModuleHolder<Module>& holder) {
  return StateOf(optimizer, ParametersOf(holder));
}

// libtorch's default random number generator of the CPU: each rank has its own, and it may be drawn
// from at any time. (Generators of other devices are not in it.) `on_world_change`: what becomes of
// it when another number of ranks goes on; kRecompute leaves it as the program has seeded it.
PERDURE_API std::unique_ptr<Stateful> RngState(WorldChange on_world_change = WorldChange::kError);

// What a step found out. Reads the loss, a tensor of one element; when it cannot be read there is
// none in the result.
PERDURE_API StepMetrics Metrics(const at::Tensor& loss, std::int64_t samples = 0,
                                std::int64_t tokens = 0);
// `inputs`: the step's tokens, samples first: [samples, …].
PERDURE_API StepMetrics Metrics(const at::Tensor& loss, const at::Tensor& inputs);
template <class Target>
StepMetrics Metrics(const at::Tensor& loss,
                    const ::torch::data::Example<at::Tensor, Target>& batch) {
  return Metrics(loss, batch.data);
}

// Averages gradients over the ranks of a communicator.
//
//   loss.backward();
//   PERDURE_RETURN_IF_ERROR(gradients.Finish());
//   optimizer.step();
//
// After backward, Finish() packs the gradients into a few contiguous buckets (at most 25 MiB each,
// by dtype, in the order of named_parameters()), averages the buckets, and leaves each parameter's
// .grad() as a view of its bucket. Communication is not overlapped with backward. The result is
// bit-identical from run to run. All ranks must construct it over the same parameters; those with
// requires_grad() at that time take part.
//
// zero_grad() is not needed: the first backward after Finish() begins anew, further ones before the
// next Finish() accumulate. A parameter that got no gradient since the last Finish() on any rank is
// an error of this Finish() on every rank, which names it; after any error no parameter has a
// gradient, so that an optimizer step changes nothing.
//
// Not thread-safe. Holds the parameters, and hooks in them until it is destroyed; borrows the
// communicator.
class PERDURE_API GradientBucketer {
 public:
  GradientBucketer(NamedTensors parameters, Communicator& communicator);
  GradientBucketer(const ::torch::nn::Module& module, Communicator& communicator)
      : GradientBucketer(ParametersOf(module), communicator) {}
  template <class Module>
  GradientBucketer(const ::torch::nn::ModuleHolder<Module>& holder, Communicator& communicator)
      : GradientBucketer(ParametersOf(holder), communicator) {}
  ~GradientBucketer();
  GradientBucketer(const GradientBucketer&) = delete;
  GradientBucketer& operator=(const GradientBucketer&) = delete;

  // Bounded by the communicator's default deadline.
  Status Finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perdure::torch
