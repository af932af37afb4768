#include "perdure/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

namespace perdure {
namespace {

struct DTypeFacts {
  DType dtype;
  std::string_view name;
  int bits;
};

// In the order of the enum.
constexpr std::array<DTypeFacts, 22> kDTypes = {{
    {DType::kBool, "BOOL", 8},
    {DType::kF4, "F4", 4},
    {DType::kF6E2M3, "F6_E2M3", 6},
    {DType::kF6E3M2, "F6_E3M2", 6},
    {DType::kU8, "U8", 8},
    {DType::kI8, "I8", 8},
    {DType::kF8E5M2, "F8_E5M2", 8},
    {DType::kF8E4M3, "F8_E4M3", 8},
    {DType::kF8E8M0, "F8_E8M0", 8},
    {DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    {DType::kI16, "I16", 16},
    {DType::kU16, "U16", 16},
    {DType::kF16, "F16", 16},
    {DType::kBF16, "BF16", 16},
    {DType::kI32, "I32", 32},
    {DType::kU32, "U32", 32},
    {DType::kF32, "F32", 32},
    {DType::kC64, "C64", 64},
    {DType::kF64, "F64", 64},
    {DType::kI64, "I64", 64},
    {DType::kU64, "U64", 64},
}};

const DTypeFacts& FactsOf(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)];
}

}  // namespace

int BitsOf(DType dtype) {
  return FactsOf(dtype).bits;
}

std::string_view NameOf(DType dtype) {
  return FactsOf(dtype).name;
}

Result<DType> DTypeFromName(std::string_view name) {
  for (const DTypeFacts& facts : kDTypes) {
    if (facts.name == name) return facts.dtype;
  }
  return Status(Code::kInvalidArgument, fmt::format("unknown dtype \"{}\"", name));
}

Result<std::int64_t> ElementCount(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0) {
      return Status(Code::kInvalidArgument,
                    fmt::format("shape {} has a negative extent", ToString(shape)));
    }
    if (__builtin_mul_overflow(count, extent, &count)) {
      return Status(Code::kInvalidArgument,
                    fmt::format("shape {} has more than 2^63 elements", ToString(shape)));
    }
  }
  return count;
}

Result<std::int64_t> ByteCount(DType dtype, const Shape& shape) {
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t elements, ElementCount(shape));
  std::int64_t bits = 0;
  if (__builtin_mul_overflow(elements, static_cast<std::int64_t>(BitsOf(dtype)), &bits)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{} tensor of shape {} has more than 2^63 bits", NameOf(dtype),
                              ToString(shape)));
  }
  if (bits % 8 != 0) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{} tensor of shape {} does not fill whole bytes", NameOf(dtype),
                              ToString(shape)));
  }
  return bits / 8;
}

std::string ToString(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace perdure
