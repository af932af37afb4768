#include "comm/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace perdure {
namespace {

TEST(ReduceTest, EveryF16SurvivesTheWayThroughFloat) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = F16ToFloat(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(F16ToFloat(FloatToF16(value))));
    } else {
      ASSERT_EQ(FloatToF16(value), bits) << value;
    }
  }
}

TEST(ReduceTest, EveryBf16SurvivesTheWayThroughFloat) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = Bf16ToFloat(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(value))));
    } else {
      ASSERT_EQ(FloatToBf16(value), bits) << value;
    }
  }
}

// Between two neighbours the nearer one, and the even one from the middle.
TEST(ReduceTest, F16RoundsToNearestEven) {
  for (std::uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = F16ToFloat(bits);
    const float high = F16ToFloat(static_cast<std::uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(FloatToF16(middle), bits % 2 == 0 ? bits : bits + 1) << low;
    ASSERT_EQ(FloatToF16(std::nextafter(middle, 0.f)), bits) << low;
    ASSERT_EQ(FloatToF16(std::nextafter(middle, 1e9f)), bits + 1) << low;
  }
  EXPECT_EQ(FloatToF16(65519.f), 0x7bff);
  EXPECT_EQ(FloatToF16(65520.f), 0x7c00);
  EXPECT_EQ(FloatToF16(std::numeric_limits<float>::infinity()), 0x7c00);
  EXPECT_EQ(FloatToF16(-1e30f), 0xfc00);
  EXPECT_EQ(FloatToF16(1e-30f), 0x0000);
}

TEST(ReduceTest, Bf16RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(FloatToBf16(1.f + 0x1p-8f), 0x3f80);             // the middle: to even
  EXPECT_EQ(FloatToBf16(1.f + 0x1p-8f + 0x1p-20f), 0x3f81);  // above it
  EXPECT_EQ(FloatToBf16(1.f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(ReduceTest, IntegerSumsWrapAndAveragesTruncate) {
  std::vector<std::int32_t> a = {std::numeric_limits<std::int32_t>::max(), -7, 7};
  const std::vector<std::int32_t> b = {1, 0, 0};
  std::vector<std::int32_t> out(3);
  Combine(DType::kI32, ReduceOp::kSum, out.data(), a.data(), b.data(), 3, 1);
  EXPECT_EQ(out, (std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::min(), -7, 7}));
  Combine(DType::kI32, ReduceOp::kAverage, a.data(), a.data(), b.data(), 3, 2);
  EXPECT_EQ(a[1], -3);
  EXPECT_EQ(a[2], 3);
}

TEST(ReduceTest, NarrowIntegersWrapAndAreDividedByManyRanks) {
  const std::vector<std::int8_t> a = {100, -128, 16};
  const std::vector<std::int8_t> b = {100, -1, 16};
  std::vector<std::int8_t> out(3);
  Combine(DType::kI8, ReduceOp::kSum, out.data(), a.data(), b.data(), 3, 1);
  EXPECT_EQ(out, (std::vector<std::int8_t>{-56, 127, 32}));
  Combine(DType::kI8, ReduceOp::kProduct, out.data(), a.data(), b.data(), 3, 1);
  EXPECT_EQ(out, (std::vector<std::int8_t>{16, -128, 0}));
  // More ranks than the integer can hold.
  const std::vector<std::uint8_t> c = {200, 3};
  std::vector<std::uint8_t> mean(2);
  Combine(DType::kU8, ReduceOp::kAverage, mean.data(), c.data(), c.data(), 2, 256);
  EXPECT_EQ(mean, (std::vector<std::uint8_t>{0, 0}));
  const std::vector<std::int8_t> d = {-50, 60};
  Combine(DType::kI8, ReduceOp::kAverage, out.data(), d.data(), d.data(), 2, 200);
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[1], 0);
}

TEST(ReduceTest, TheOutputMayBeEitherInput) {
  const std::vector<double> left = {1, 5, -2};
  const std::vector<double> right = {4, 2, -3};
  std::vector<double> a = left;
  std::vector<double> b = right;
  Combine(DType::kF64, ReduceOp::kMin, a.data(), a.data(), b.data(), 3, 1);
  EXPECT_EQ(a, (std::vector<double>{1, 2, -3}));
  a = left;
  Combine(DType::kF64, ReduceOp::kMax, b.data(), a.data(), b.data(), 3, 1);
  EXPECT_EQ(b, (std::vector<double>{4, 5, -2}));
}

TEST(ReduceTest, HalvesAreSummedInFloatAndRoundedOnce) {
  // 2049 is not a half, but its third is, if the division comes before the rounding.
  const std::uint16_t a = FloatToF16(2048.f);
  const std::uint16_t b = FloatToF16(1.f);
  std::uint16_t out = 0;
  Combine(DType::kF16, ReduceOp::kAverage, &out, &a, &b, 1, 3);
  EXPECT_EQ(F16ToFloat(out), 683.f);
}

}  // namespace
}  // namespace perdure
