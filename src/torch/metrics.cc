#include <cmath>

#include "perdure/torch.h"
#include "torch/guard.h"

namespace perdure::torch {

StepMetrics Metrics(const at::Tensor& loss, std::int64_t samples, std::int64_t tokens) {
  StepMetrics metrics;
  metrics.samples = samples;
  metrics.tokens = tokens;
  const Result<double> value =
      Guarded("reading the loss", [&]() -> Result<double> { return loss.item<double>(); });
  if (value.ok()) {
    metrics.loss = *value;
    metrics.finite = std::isfinite(*value);
  }
  return metrics;
}

StepMetrics Metrics(const at::Tensor& loss, const at::Tensor& inputs) {
  if (!inputs.defined()) return Metrics(loss);
  return Metrics(loss, inputs.dim() > 0 ? inputs.size(0) : 1, inputs.numel());
}

}  // namespace perdure::torch
