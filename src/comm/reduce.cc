#include "comm/reduce.h"

#include <bit>
#include <type_traits>

#include "base/check.h"

namespace perdure {
namespace {

// Storage and arithmetic of each dtype.
template <class T>
struct Plain {
  using Storage = T;
  using Value = T;
  static Value Load(Storage x) { return x; }
  static Storage Save(Value x) { return x; }
};
struct Bf16 {
  using Storage = std::uint16_t;
  using Value = float;
  static Value Load(Storage x) { return Bf16ToFloat(x); }
  static Storage Save(Value x) { return FloatToBf16(x); }
};
struct F16 {
  using Storage = std::uint16_t;
  using Value = float;
  static Value Load(Storage x) { return F16ToFloat(x); }
  static Storage Save(Value x) { return FloatToF16(x); }
};

template <class T>
T Sum(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  } else {
    return a + b;
  }
}

template <class T>
T Product(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    // Narrow types would be multiplied as int, which may overflow.
    using U = std::conditional_t<(sizeof(T) < sizeof(unsigned)), unsigned, std::make_unsigned_t<T>>;
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  } else {
    return a * b;
  }
}

template <class Type, class Op>
void Loop(void* out, const void* a, const void* b, std::size_t count, Op op) {
  using Storage = typename Type::Storage;
  auto* const to = static_cast<Storage*>(out);
  const auto* const left = static_cast<const Storage*>(a);
  const auto* const right = static_cast<const Storage*>(b);
  // Same index on both sides of the assignment, so aliasing of whole ranges is harmless.
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = Type::Save(op(Type::Load(left[i]), Type::Load(right[i])));
  }
}

template <class Type>
void CombineAs(ReduceOp op, void* out, const void* a, const void* b, std::size_t count,
               int divisor) {
  using Value = typename Type::Value;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      if (divisor == 1) {
        Loop<Type>(out, a, b, count, [](Value x, Value y) { return Sum(x, y); });
      } else {
        // Not in the integer's own type, which may be too narrow for the number of ranks.
        const auto by =
            static_cast<std::conditional_t<std::is_integral_v<Value>, int, Value>>(divisor);
        Loop<Type>(out, a, b, count,
                   [by](Value x, Value y) { return static_cast<Value>(Sum(x, y) / by); });
      }
      return;
    case ReduceOp::kProduct:
      Loop<Type>(out, a, b, count, [](Value x, Value y) { return Product(x, y); });
      return;
    case ReduceOp::kMin:
      Loop<Type>(out, a, b, count, [](Value x, Value y) { return y < x ? y : x; });
      return;
    case ReduceOp::kMax:
      Loop<Type>(out, a, b, count, [](Value x, Value y) { return x < y ? y : x; });
      return;
  }
}

}  // namespace

bool CanReduce(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF64:
    case DType::kF16:
    case DType::kBF16:
    case DType::kI32:
    case DType::kI64:
    case DType::kI8:
    case DType::kU8:
      return true;
    default:
      return false;
  }
}

void Combine(DType dtype, ReduceOp op, void* out, const void* a, const void* b, std::size_t count,
             int divisor) {
  switch (dtype) {
    case DType::kF32:
      return CombineAs<Plain<float>>(op, out, a, b, count, divisor);
    case DType::kF64:
      return CombineAs<Plain<double>>(op, out, a, b, count, divisor);
    case DType::kF16:
      return CombineAs<F16>(op, out, a, b, count, divisor);
    case DType::kBF16:
      return CombineAs<Bf16>(op, out, a, b, count, divisor);
    case DType::kI32:
      return CombineAs<Plain<std::int32_t>>(op, out, a, b, count, divisor);
    case DType::kI64:
      return CombineAs<Plain<std::int64_t>>(op, out, a, b, count, divisor);
    case DType::kI8:
      return CombineAs<Plain<std::int8_t>>(op, out, a, b, count, divisor);
    case DType::kU8:
      return CombineAs<Plain<std::uint8_t>>(op, out, a, b, count, divisor);
    default:
      PERDURE_CHECK(false, "a reduction of a dtype that CanReduce refuses");
  }
}

std::uint16_t FloatToBf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // A NaN whose payload sits in the lower half must not become infinity.
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40u : rounded);
}

float Bf16ToFloat(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t FloatToF16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t result;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u;  // NaN
  } else if (magnitude >= 0x47800000u) {
    result = 0x7c00u;  // 65536 and above, and infinity
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14: subnormal. Adding 0.5 lets the adder round the 24-bit mantissa to units of
    // 2^-24, to nearest even, and leaves the result in the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    result = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u;
  } else {
    // Rebias the exponent by 112 and round the 13 dropped bits to nearest even; a carry out of the
    // mantissa moves into the exponent, up to infinity, as it should.
    const std::uint32_t odd = (magnitude >> 13) & 1u;
    result = (magnitude - 0x38000000u + 0xfffu + odd) >> 13;
  }
  return static_cast<std::uint16_t>(sign | result);
}

float F16ToFloat(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  float value;
  if (magnitude < 0x400u) {
    value = static_cast<float>(magnitude) * 0x1p-24f;  // zero and subnormals, exactly
  } else if (magnitude < 0x7c00u) {
    value = std::bit_cast<float>((magnitude << 13) + 0x38000000u);
  } else {
    value = std::bit_cast<float>((magnitude << 13) | 0x7f800000u);  // infinity, NaN
  }
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

}  // namespace perdure
