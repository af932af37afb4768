#include "perdure/tensor.h"

#include <gtest/gtest.h>

namespace perdure {
namespace {

TEST(DType, NamesGoBothWays) {
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
    const DType dtype = static_cast<DType>(i);
    EXPECT_EQ(*DTypeFromName(NameOf(dtype)), dtype) << NameOf(dtype);
  }
  EXPECT_EQ(NameOf(DType::kF8E4M3Fnuz), "F8_E4M3FNUZ");
  EXPECT_EQ(NameOf(DType::kBF16), "BF16");
  EXPECT_FALSE(DTypeFromName("F12").ok());
}

TEST(ByteCount, CountsAndRefuses) {
  EXPECT_EQ(*ByteCount(DType::kF32, {}), 4);
  EXPECT_EQ(*ByteCount(DType::kF32, {3, 0, 5}), 0);
  EXPECT_EQ(*ByteCount(DType::kF4, {3, 2}), 3);
  EXPECT_FALSE(ByteCount(DType::kF4, {3}).ok());
  EXPECT_FALSE(ByteCount(DType::kF32, {-1}).ok());
  EXPECT_FALSE(ByteCount(DType::kU8, {std::int64_t{1} << 33, std::int64_t{1} << 33}).ok());
}

}  // namespace
}  // namespace perdure
