// GradientBucketer: averages gradients after backward.
//
//  1 A hook in each parameter notes that backward reached it. At the first arrival since the last
//    Finish() the hook drops the old gradient, so the new one starts from nothing.
//  2 Finish() copies each gradient into its place in a bucket. A parameter that was not reached
//    gets zeros, and a mark in the attendance record.
//  3 The attendance record (per parameter: how many ranks miss it, and the sum of their numbers)
//    is averaged with the buckets, so all ranks learn in this same step what one of them lacks,
//    without an operation of its own when there is a bucket of floats to carry it.
//  4 All buckets are submitted, in order, then all are waited for, also after a failure: the
//    memory must stay while an operation may write to it.
//  5 Everything arrived: gradients become views of the buckets. Otherwise no parameter keeps a
//    gradient: a step is averaged as a whole or not at all.
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <optional>
#include <unordered_set>

#include "perdure/torch.h"
#include "torch/guard.h"

namespace perdure::torch {
namespace {

constexpr std::int64_t kBucketBytesMax = 25 << 20;
// Each gradient starts on a cache line, as in memory of its own: vectorized kernels then take the
// same path wherever it lies.
constexpr std::int64_t kAlignBytes = 64;
// Names in one error message.
constexpr std::size_t kNamesMax = 8;
// Beyond the operations' own deadline, for the backend to report that it has passed.
constexpr std::chrono::seconds kReportGrace{5};

struct Bucket {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::int64_t elements = 0;
  at::Tensor flat;
};

struct Slot {
  std::size_t bucket = 0;
  std::int64_t begin = 0;  // in elements
};

std::int64_t AlignedElements(std::int64_t elements, std::int64_t element_bytes) {
  const std::int64_t per_line = std::max<std::int64_t>(1, kAlignBytes / element_bytes);
  return (elements + per_line - 1) / per_line * per_line;
}

// Parameters that take part, and what backward has reached. Shared with the hooks, which may
// outlive nothing of it: they hold it weakly.
struct Arrivals {
  explicit Arrivals(std::size_t count) : arrived(count) {}
  NamedTensors parameters;
  std::vector<std::atomic<bool>> arrived;  // autograd may run hooks on threads of its own
};

}  // namespace

class GradientBucketer::Impl {
 public:
  Impl(NamedTensors parameters, Communicator& communicator) : communicator_(communicator) {
    setup_ = Guarded("planning gradient buckets",
                     [&]() -> Status { return Plan(std::move(parameters)); });
  }

  ~Impl() {
    for (std::size_t i = 0; i < hooks_.size(); ++i) {
      try {
        arrivals_->parameters[i].second.remove_hook(hooks_[i]);
      } catch (const std::exception&) {
        // The hook stays and does nothing: what it holds weakly is gone.
      }
    }
  }

  Status Finish() {
    PERDURE_RETURN_IF_ERROR(setup_);
    Status status = Guarded("averaging gradients", [&]() -> Status {
      PERDURE_RETURN_IF_ERROR(Pack());
      if (communicator_.size() > 1) PERDURE_RETURN_IF_ERROR(Average());
      PERDURE_RETURN_IF_ERROR(CheckAttendance());
      for (std::size_t i = 0; i < slots_.size(); ++i) Gradient(i) = View(i);
      return Ok();
    });
    if (!status.ok()) {
      for (std::size_t i = 0; i < slots_.size(); ++i) Gradient(i) = at::Tensor();
    }
    for (std::atomic<bool>& arrived : arrivals_->arrived) arrived = false;
    return status;
  }

 private:
  Status Plan(NamedTensors parameters) {
    NamedTensors wanted;
    std::unordered_set<const c10::TensorImpl*> seen;
    for (auto& [name, tensor] : parameters) {
      if (!tensor.defined() || !tensor.requires_grad()) continue;
      if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      if (!tensor.is_leaf()) {
        return Status(Code::kInvalidArgument, fmt::format("{} is not a parameter: it is computed "
                                                          "from other tensors",
                                                          name));
      }
      wanted.emplace_back(name, tensor);
    }
    if (wanted.empty()) {
      return Status(Code::kInvalidArgument,
                    "there is no parameter that requires a gradient to average");
    }

    // The open bucket of each kind. Buckets are numbered as they are opened: the same on all ranks.
    std::map<std::pair<at::ScalarType, std::string>, std::size_t> open;
    for (const auto& [name, tensor] : wanted) {
      const auto bytes = static_cast<std::int64_t>(tensor.element_size());
      const std::int64_t length = AlignedElements(tensor.numel(), bytes);
      const auto kind = std::make_pair(tensor.scalar_type(), tensor.device().str());
      auto found = open.find(kind);
      if (found == open.end() ||
          (buckets_[found->second].elements + length) * bytes > kBucketBytesMax) {
        buckets_.push_back({tensor.scalar_type(), tensor.device(), 0, {}});
        found = open.insert_or_assign(kind, buckets_.size() - 1).first;
      }
      Bucket& bucket = buckets_[found->second];
      slots_.push_back({found->second, bucket.elements});
      bucket.elements += length;
    }
    PlaceAttendance(wanted.size());
    for (Bucket& bucket : buckets_) {
      bucket.flat = at::zeros({bucket.elements},
                              at::TensorOptions().dtype(bucket.dtype).device(bucket.device));
      PERDURE_RETURN_IF_ERROR(ViewOf(bucket.flat).status());
    }
    attendance_ = buckets_[attendance_slot_.bucket].flat.narrow(
        0, attendance_slot_.begin, static_cast<std::int64_t>(2 * wanted.size()));

    arrivals_ = std::make_shared<Arrivals>(wanted.size());
    arrivals_->parameters = std::move(wanted);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      hooks_.push_back(arrivals_->parameters[i].second.register_hook(
          [weak = std::weak_ptr<Arrivals>(arrivals_), i](const at::Tensor&) {
            const std::shared_ptr<Arrivals> arrivals = weak.lock();
            if (arrivals == nullptr || arrivals->arrived[i].exchange(true)) return;
            arrivals->parameters[i].second.mutable_grad() = at::Tensor();
          }));
    }
    return Ok();
  }

  // At the end of the last bucket of floats in main memory, else in a bucket of its own.
  void PlaceAttendance(std::size_t parameters) {
    std::size_t carrier = buckets_.size();
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      if (buckets_[b].dtype == at::kFloat && buckets_[b].device.is_cpu()) carrier = b;
    }
    if (carrier == buckets_.size()) buckets_.push_back({at::kFloat, at::kCPU, 0, {}});
    attendance_slot_ = {carrier, buckets_[carrier].elements};
    buckets_[carrier].elements += static_cast<std::int64_t>(2 * parameters);
  }

  at::Tensor& Gradient(std::size_t i) { return arrivals_->parameters[i].second.mutable_grad(); }

  at::Tensor View(std::size_t i) {
    const at::Tensor& parameter = arrivals_->parameters[i].second;
    return buckets_[slots_[i].bucket]
        .flat.narrow(0, slots_[i].begin, parameter.numel())
        .view(parameter.sizes());
  }

  // 2
  Status Pack() {
    const at::NoGradGuard no_grad;
    attendance_.zero_();
    float* const attendance = attendance_.data_ptr<float>();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const auto& [name, parameter] = arrivals_->parameters[i];
      const at::Tensor& gradient = parameter.grad();
      at::Tensor place = View(i);
      if (!arrivals_->arrived[i] || !gradient.defined()) {
        place.zero_();
        attendance[2 * i] = 1;
        attendance[2 * i + 1] = static_cast<float>(communicator_.rank().value() + 1);
        continue;
      }
      if (gradient.layout() != at::kStrided) {
        return Status(
            Code::kUnimplemented,
            fmt::format("the gradient of {} is sparse; only dense ones are averaged", name));
      }
      place.copy_(gradient);
    }
    return Ok();
  }

  // 3, 4
  Status Average() {
    const Deadline deadline = communicator_.DefaultDeadline();
    std::vector<std::shared_ptr<Work>> works;
    for (const Bucket& bucket : buckets_) {
      PERDURE_ASSIGN_OR_RETURN(const TensorView view, ViewOf(bucket.flat));
      works.push_back(communicator_.AllReduce(view, ReduceOp::kAverage, deadline));
    }
    Status first;
    const Deadline reported(deadline.at() + kReportGrace);
    for (std::size_t b = 0; b < works.size(); ++b) {
      const Status status = works[b]->Wait(reported);
      if (status.ok()) continue;
      if (first.ok()) {
        first = status.WithContext(
            fmt::format("averaging gradients, bucket {} of {}", b + 1, works.size()));
      }
      // Still running: end it, so that nothing writes to a bucket after this call.
      if (!works[b]->Test()) communicator_.Abort(first);
    }
    return first;
  }

  Status CheckAttendance() {
    const float* const attendance = attendance_.data_ptr<float>();
    const int size = communicator_.size();
    std::vector<std::string> missing;
    std::size_t count = 0;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      // Alone nothing was averaged; else these are sums divided by the number of ranks.
      const float scale = size > 1 ? static_cast<float>(size) : 1;
      const long ranks = std::lround(attendance[2 * i] * scale);
      if (ranks == 0) continue;
      if (++count > kNamesMax) continue;
      const long sum = std::lround(attendance[2 * i + 1] * scale);
      const std::string& name = arrivals_->parameters[i].first;
      missing.push_back(ranks == 1 ? fmt::format("{} (on rank {})", name, sum - 1)
                                   : fmt::format("{} (on {} of {} ranks)", name, ranks, size));
    }
    if (count == 0) return Ok();
    return Status(
        Code::kFailedPrecondition,
        fmt::format("no gradient in this step for {}{}; every parameter must take part in the "
                    "loss, or have requires_grad off before the GradientBucketer is made",
                    fmt::join(missing, ", "),
                    count > kNamesMax ? fmt::format(" and {} more", count - kNamesMax) : ""));
  }

  Communicator& communicator_;
  Status setup_;
  std::vector<Bucket> buckets_;
  std::vector<Slot> slots_;  // one per parameter
  Slot attendance_slot_;
  at::Tensor attendance_;  // [ranks that miss parameter 0, sum of (rank + 1) of those, 1, …]
  std::shared_ptr<Arrivals> arrivals_;
  std::vector<unsigned> hooks_;
};

GradientBucketer::GradientBucketer(NamedTensors parameters, Communicator& communicator)
    : impl_(std::make_unique<Impl>(std::move(parameters), communicator)) {}
GradientBucketer::~GradientBucketer() = default;

Status GradientBucketer::Finish() {
  return impl_->Finish();
}

}  // namespace perdure::torch
