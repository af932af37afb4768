// The arithmetic of reductions on CPU. Pure. f16 and bf16 are computed in f32 and rounded to
// nearest even.
#pragma once

#include <cstddef>
#include <cstdint>

#include "perdure/comm.h"
#include "perdure/tensor.h"

namespace perdure {

// f64 f32 f16 bf16 i64 i32 i8 u8.
bool CanReduce(DType dtype);

// out[i] = op(a[i], b[i]), then divided by `divisor` when that is not 1 (the last step of an
// average; integers truncate toward zero). `out` may be `a` or `b`; otherwise nothing overlaps.
// Which operand is `a` matters only for NaN and for -0 in min and max, and is kept the same on all
// ranks, so that their results are the same bits. Integer sums and products wrap.
void Combine(DType dtype, ReduceOp op, void* out, const void* a, const void* b, std::size_t count,
             int divisor);

std::uint16_t FloatToBf16(float value);
float Bf16ToFloat(std::uint16_t bits);
std::uint16_t FloatToF16(float value);
float F16ToFloat(std::uint16_t bits);

}  // namespace perdure
