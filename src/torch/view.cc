#include <fmt/format.h>

#include <optional>

#include "perdure/torch.h"
#include "torch/guard.h"

namespace perdure::torch {
namespace {

std::optional<DType> DTypeOf(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return DType::kBool;
    case at::kByte:
      return DType::kU8;
    case at::kChar:
      return DType::kI8;
    case at::kShort:
      return DType::kI16;
    case at::kInt:
      return DType::kI32;
    case at::kLong:
      return DType::kI64;
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kFloat:
      return DType::kF32;
    case at::kDouble:
      return DType::kF64;
    case at::kComplexFloat:
      return DType::kC64;
    default:
      break;
  }
  // Younger than libtorch 1.13, so known by name only.
  const std::string_view name = c10::toString(type);
  if (name == "Float8_e5m2") return DType::kF8E5M2;
  if (name == "Float8_e4m3fn") return DType::kF8E4M3;
  if (name == "Float8_e5m2fnuz") return DType::kF8E5M2Fnuz;
  if (name == "Float8_e4m3fnuz") return DType::kF8E4M3Fnuz;
  if (name == "Float8_e8m0fnu") return DType::kF8E8M0;
  if (name == "UInt16") return DType::kU16;
  if (name == "UInt32") return DType::kU32;
  if (name == "UInt64") return DType::kU64;
  return std::nullopt;
}

Status Unfit(std::string_view why) {
  return Status(Code::kInvalidArgument,
                fmt::format("a view of this tensor is not possible: {}", why));
}

}  // namespace

Result<TensorView> ViewOf(const at::Tensor& tensor) {
  return Guarded("viewing a tensor", [&]() -> Result<TensorView> {
    if (!tensor.defined()) return Unfit("it is undefined");
    if (tensor.layout() != at::kStrided) return Unfit("its layout is not strided; make it dense");
    if (tensor.is_quantized()) return Unfit("it is quantized; save int_repr() and its scale");
    if (tensor.is_conj() || tensor.is_neg()) {
      return Unfit("it is a lazy conjugate or negative; use resolve_conj().resolve_neg()");
    }
    const std::optional<DType> dtype = DTypeOf(tensor.scalar_type());
    if (!dtype.has_value()) {
      return Unfit(fmt::format("the safetensors format has no dtype for {}",
                               c10::toString(tensor.scalar_type())));
    }
    TensorView view;
    if (tensor.device().is_cpu()) {
      view.device = DeviceKind::kCpu;
    } else if (tensor.device().is_cuda()) {
      view.device = DeviceKind::kCuda;
      view.device_index = tensor.device().index();
    } else {
      return Unfit(
          fmt::format("it is on device {}, only cpu and cuda are known", tensor.device().str()));
    }
    view.data = tensor.data_ptr();
    view.dtype = *dtype;
    view.shape = tensor.sizes().vec();
    if (!tensor.is_contiguous()) view.strides = tensor.strides().vec();
    return view;
  });
}

}  // namespace perdure::torch
