#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <array>
#include <cstring>
#include <vector>

#include "comm/ranks.h"
#include "perdure/torch.h"

namespace perdure::torch {
namespace {

namespace nn = ::torch::nn;
using test::RankParts;
using test::Transport;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRanks = 4;

// The same weights wherever it is made: the ranks are threads, which share one random generator.
void Fill(nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : module.named_parameters()) {
    parameter->copy_(at::linspace(-0.5, 0.7, parameter->numel()).view(parameter->sizes()));
  }
}

struct SmallNetImpl : nn::Module {
  SmallNetImpl() {
    first = register_module("first", nn::Linear(5, 7));
    second = register_module("second", nn::Linear(7, 3));
    extra = register_module("extra", nn::Linear(7, 3));
    Fill(*this);
  }
  at::Tensor forward(const at::Tensor& input, bool use_extra = true) {
    const at::Tensor hidden = at::tanh(first(input));
    const at::Tensor output = second(hidden);
    return (use_extra ? output + extra(hidden) : output).pow(2).mean();
  }
  nn::Linear first = nullptr, second = nullptr, extra = nullptr;
};
TORCH_MODULE(SmallNet);

at::Tensor InputOf(int rank, int step) {
  return at::linspace(-1.0 - rank, 1.0 + step, 20).view({4, 5});
}

std::vector<std::vector<float>> Gradients(const nn::Module& module) {
  std::vector<std::vector<float>> gradients;
  for (const at::Tensor& parameter : module.parameters()) {
    const at::Tensor gradient = parameter.grad().contiguous();
    gradients.emplace_back(gradient.data_ptr<float>(),
                           gradient.data_ptr<float>() + gradient.numel());
  }
  return gradients;
}

// What the average should be: computed in one process, rank after rank.
std::vector<std::vector<float>> Reference(int step) {
  SmallNet net;
  std::vector<std::vector<float>> sum;
  for (int rank = 0; rank < kRanks; ++rank) {
    net->zero_grad();
    net->forward(InputOf(rank, step)).backward();
    const std::vector<std::vector<float>> part = Gradients(*net);
    if (sum.empty()) sum.resize(part.size());
    for (std::size_t p = 0; p < part.size(); ++p) {
      sum[p].resize(part[p].size());
      for (std::size_t i = 0; i < part[p].size(); ++i) sum[p][i] += part[p][i] / kRanks;
    }
  }
  return sum;
}

void ExpectNear(const std::vector<std::vector<float>>& a,
                const std::vector<std::vector<float>>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t p = 0; p < a.size(); ++p) {
    ASSERT_EQ(a[p].size(), b[p].size());
    for (std::size_t i = 0; i < a[p].size(); ++i) EXPECT_NEAR(a[p][i], b[p][i], 1e-5);
  }
}

class GradientBucketerTest : public testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
  test::World world_{Transport::kLoopback, kRanks};
};

// Three steps without zero_grad: each begins anew. The same bits on all ranks, and in another run.
TEST_F(GradientBucketerTest, AveragesAndBeginsAnewEachStep) {
  std::array<std::vector<std::vector<std::vector<float>>>, 2> runs;
  for (auto& run : runs) {
    std::vector<std::vector<std::vector<std::vector<float>>>> all(kRanks);
    test::World world(Transport::kLoopback, kRanks);
    world.Run([&](Communicator& communicator, RankParts& parts) {
      SmallNet net;
      GradientBucketer gradients(net, communicator);
      for (int step = 0; step < 3; ++step) {
        net->forward(InputOf(parts.rank, step)).backward();
        const Status status = gradients.Finish();
        ASSERT_TRUE(status.ok()) << status.ToString();
        all[static_cast<std::size_t>(parts.rank)].push_back(Gradients(*net));
      }
    });
    for (int rank = 1; rank < kRanks; ++rank) {
      EXPECT_EQ(all[static_cast<std::size_t>(rank)], all[0]);
    }
    run = all[0];
  }
  EXPECT_EQ(runs[0], runs[1]);
  ASSERT_EQ(runs[0].size(), 3u);
  for (int step = 0; step < 3; ++step) {
    ExpectNear(runs[0][static_cast<std::size_t>(step)], Reference(step));
  }
}

TEST_F(GradientBucketerTest, SeveralBackwardsAccumulate) {
  world_.Run([&](Communicator& communicator, RankParts& parts) {
    SmallNet net;
    GradientBucketer gradients(net, communicator);
    for (int round = 0; round < 2; ++round) {
      (net->forward(InputOf(parts.rank, 0)) * 0.25).backward();
      (net->forward(InputOf(parts.rank, 0)) * 0.75).backward();
      ASSERT_TRUE(gradients.Finish().ok());
      ExpectNear(Gradients(*net), Reference(0));
    }
  });
}

// Also when gradients of an earlier step are still there, and when zero_grad left zeros.
TEST_F(GradientBucketerTest, AParameterUnusedOnOneRankIsNamedOnAllInTheSameStep) {
  world_.Run([&](Communicator& communicator, RankParts& parts) {
    SmallNet net;
    GradientBucketer gradients(net, communicator);
    net->forward(InputOf(parts.rank, 0)).backward();
    ASSERT_TRUE(gradients.Finish().ok());
    net->zero_grad();

    net->forward(InputOf(parts.rank, 1), /*use_extra=*/parts.rank != 2).backward();
    Status status = gradients.Finish();
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("extra.weight (on rank 2), extra.bias (on rank 2)"),
                      testing::Not(HasSubstr("first"))));
    for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());

    net->forward(InputOf(parts.rank, 2), /*use_extra=*/parts.rank == 1).backward();
    status = gradients.Finish();
    EXPECT_THAT(status.message(), HasSubstr("extra.weight (on 3 of 4 ranks)"));

    // Nothing is broken: the next step is whole again.
    net->forward(InputOf(parts.rank, 2)).backward();
    ASSERT_TRUE(gradients.Finish().ok());
    ExpectNear(Gradients(*net), Reference(2));
  });
}

TEST_F(GradientBucketerTest, APeerThatIsGoneLeavesNoGradient) {
  world_.Run([&](Communicator& communicator, RankParts& parts) {
    SmallNet net;
    GradientBucketer gradients(net, communicator);
    net->forward(InputOf(parts.rank, 0)).backward();
    if (parts.rank == 3) {
      communicator.Abort(Status(Code::kAborted, "rank 3 has had enough"));
    }
    const Status status = gradients.Finish();
    EXPECT_FALSE(status.ok());
    for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
  });
}

// Parameters of several dtypes, one larger than a bucket, one of a single element, one frozen.
TEST_F(GradientBucketerTest, ManyKindsOfParameters) {
  struct MixedImpl : nn::Module {
    MixedImpl() {
      large = register_parameter("large", at::ones({7 << 20}));
      half = register_parameter("half", at::ones({33}, at::kBFloat16));
      twice = register_parameter("twice", at::ones({5}, at::kDouble));
      single = register_parameter("single", at::ones({}));
      frozen = register_parameter("frozen", at::ones({3}), /*requires_grad=*/false);
    }
    at::Tensor large, half, twice, single, frozen;
  };
  test::World world(Transport::kLoopback, 2);
  world.Run([&](Communicator& communicator, RankParts& parts) {
    MixedImpl net;
    GradientBucketer gradients(net, communicator);
    const double scale = parts.rank == 0 ? 1 : 3;
    const at::Tensor loss = net.large.sum() * scale + net.half.sum().to(at::kFloat) * scale +
                            net.twice.sum().to(at::kFloat) * scale + net.single * scale +
                            net.frozen.sum();
    loss.backward();
    const Status status = gradients.Finish();
    ASSERT_TRUE(status.ok()) << status.ToString();
    for (const at::Tensor& parameter : {net.large, net.half, net.twice, net.single}) {
      ASSERT_EQ(parameter.grad().scalar_type(), parameter.scalar_type());
      EXPECT_TRUE(parameter.grad().eq(2).all().item<bool>());
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(parameter.grad().data_ptr()) % 64, 0u);
    }
    EXPECT_FALSE(net.frozen.grad().defined());
  });
}

TEST_F(GradientBucketerTest, AloneItOnlyPacks) {
  test::World world(Transport::kLoopback, 1);
  world.Run([&](Communicator& communicator, RankParts&) {
    SmallNet net;
    net->forward(InputOf(0, 0)).backward();
    const std::vector<std::vector<float>> plain = Gradients(*net);
    GradientBucketer gradients(net, communicator);
    net->forward(InputOf(0, 0)).backward();
    ASSERT_TRUE(gradients.Finish().ok());
    EXPECT_EQ(Gradients(*net), plain);
    net->forward(InputOf(0, 0), false).backward();
    EXPECT_THAT(gradients.Finish().message(), HasSubstr("extra.bias (on rank 0)"));
  });
}

TEST_F(GradientBucketerTest, LeavesTheModuleAsItWas) {
  test::World world(Transport::kLoopback, 1);
  world.Run([&](Communicator& communicator, RankParts&) {
    SmallNet net;
    { const GradientBucketer gradients(net, communicator); }
    net->forward(InputOf(0, 0)).backward();
    const std::vector<std::vector<float>> once = Gradients(*net);
    net->forward(InputOf(0, 0)).backward();  // accumulates, as libtorch does by itself
    EXPECT_EQ(Gradients(*net)[0][0], 2 * once[0][0]);
  });
}

TEST_F(GradientBucketerTest, NothingToAverageIsAnError) {
  test::World world(Transport::kLoopback, 1);
  world.Run([&](Communicator& communicator, RankParts&) {
    const SmallNet empty = nullptr;
    GradientBucketer gradients(empty, communicator);
    EXPECT_EQ(gradients.Finish().code(), Code::kInvalidArgument);
    const at::Tensor weight = at::ones({2}).requires_grad_();
    GradientBucketer computed(NamedTensors{{"product", weight * 2}}, communicator);
    EXPECT_THAT(computed.Finish().message(), HasSubstr("product is not a parameter"));
  });
}

}  // namespace
}  // namespace perdure::torch
