#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

#include "perdure/torch.h"
#include "torch/memory_checkpoint.h"

namespace perdure::torch {
namespace {

TEST(ViewOf, KnowsEveryDtype) {
  const std::pair<at::ScalarType, DType> kTypes[] = {
      {at::kBool, DType::kBool},  {at::kByte, DType::kU8},          {at::kChar, DType::kI8},
      {at::kShort, DType::kI16},  {at::kInt, DType::kI32},          {at::kLong, DType::kI64},
      {at::kHalf, DType::kF16},   {at::kBFloat16, DType::kBF16},    {at::kFloat, DType::kF32},
      {at::kDouble, DType::kF64}, {at::kComplexFloat, DType::kC64},
  };
  for (const auto& [type, dtype] : kTypes) {
    const at::Tensor tensor = at::ones({2, 3}, type);
    const Result<TensorView> view = ViewOf(tensor);
    ASSERT_TRUE(view.ok()) << view.status().ToString();
    EXPECT_EQ(view->dtype, dtype);
    EXPECT_EQ(view->data, tensor.data_ptr());
    EXPECT_EQ(view->shape, (Shape{2, 3}));
    EXPECT_TRUE(view->strides.empty());
    EXPECT_EQ(static_cast<std::int64_t>(tensor.nbytes()), *ByteCount(view->dtype, view->shape));
  }
}

TEST(ViewOf, StridedViewsShowTheSameElements) {
  const at::Tensor base = at::arange(60, at::kInt).reshape({3, 4, 5});
  for (const at::Tensor& tensor :
       {base.transpose(0, 2), base.slice(1, 1, 3), base.select(2, 4), base.permute({1, 2, 0}),
        base.slice(0, 0, 3, 2), base.unsqueeze(1), base.reshape({60}).slice(0, 7, 8)}) {
    const Result<TensorView> view = ViewOf(tensor);
    ASSERT_TRUE(view.ok()) << view.status().ToString();
    const at::Tensor packed = tensor.contiguous();
    EXPECT_EQ(test::Pack(*view),
              std::string(static_cast<const char*>(packed.data_ptr()), packed.nbytes()));
  }
}

TEST(ViewOf, EmptyAndZeroDimensional) {
  EXPECT_EQ(ViewOf(at::zeros({}))->shape, Shape{});
  EXPECT_EQ(ViewOf(at::zeros({0, 3}))->shape, (Shape{0, 3}));
}

TEST(ViewOf, SaysWhatItCannotShow) {
  EXPECT_FALSE(ViewOf(at::Tensor()).ok());
  EXPECT_FALSE(ViewOf(at::eye(3).to_sparse()).ok());
  EXPECT_FALSE(ViewOf(at::ones({2}, at::kComplexFloat).conj()).ok());
  EXPECT_FALSE(ViewOf(at::ones({2}, at::kComplexDouble)).ok());
  EXPECT_FALSE(ViewOf(at::quantize_per_tensor(at::ones({2}), 0.1, 0, at::kQInt8)).ok());
}

TEST(Metrics, ReadsTheLoss) {
  const StepMetrics metrics = Metrics(at::full({}, 2.5), at::zeros({4, 16}, at::kLong));
  EXPECT_EQ(metrics.loss, 2.5);
  EXPECT_EQ(metrics.samples, 4);
  EXPECT_EQ(metrics.tokens, 64);
  EXPECT_TRUE(metrics.finite);
  EXPECT_FALSE(Metrics(at::full({}, std::numeric_limits<double>::quiet_NaN())).finite);
  EXPECT_EQ(Metrics(at::zeros({3})).loss, std::nullopt);
  const ::torch::data::Example<> batch(at::zeros({2, 3}), at::zeros({2}));
  EXPECT_EQ(Metrics(at::full({}, 1.0), batch).samples, 2);
}

}  // namespace
}  // namespace perdure::torch
