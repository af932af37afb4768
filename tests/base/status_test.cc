#include "perdure/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace perdure {
namespace {

Result<int> Half(int n) {
  if (n % 2 != 0) return Status(Code::kInvalidArgument, "odd");
  return n / 2;
}

Result<int> Quarter(int n) {
  PERDURE_ASSIGN_OR_RETURN(const int half, Half(n));
  PERDURE_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

TEST(Status, OkHasNoMessage) {
  EXPECT_TRUE(Ok().ok());
  EXPECT_EQ(Ok().ToString(), "ok");
  EXPECT_EQ(Ok().WithContext("reading").ToString(), "ok");
}

TEST(Status, KeepsCodeMessageAndFailureThroughCopies) {
  CommFailure failure;
  failure.failure_class = CommFailure::Class::kPeerDead;
  failure.suspects = {{Rank(3), "gone"}};
  const Status original(failure, "all_reduce failed");
  Status copy = original;
  copy = copy.WithContext("step 7");
  EXPECT_EQ(copy.ToString(), "comm_failed: step 7: all_reduce failed");
  ASSERT_NE(copy.comm_failure(), nullptr);
  EXPECT_EQ(copy.comm_failure()->suspects[0].rank, Rank(3));
  EXPECT_EQ(original.message(), "all_reduce failed");
}

TEST(Result, CarriesValueOrStatus) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().code(), Code::kInvalidArgument);
  Result<std::unique_ptr<int>> owned(std::make_unique<int>(5));
  EXPECT_EQ(*std::move(owned).value(), 5);
}

TEST(Result, AnOkStatusIsNotAValue) {
  const Result<int> wrong{Status()};
  EXPECT_EQ(wrong.status().code(), Code::kInternal);
}

}  // namespace
}  // namespace perdure
