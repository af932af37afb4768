#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <functional>
#include <vector>

#include "perdure/torch.h"
#include "torch/memory_checkpoint.h"

namespace perdure::torch {
namespace {

namespace nn = ::torch::nn;
namespace optim = ::torch::optim;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// Dropout draws random numbers, batch norm has buffers: one of them an int64 of no dimension.
struct NetImpl : nn::Module {
  NetImpl() {
    first = register_module("first", nn::Linear(6, 16));
    norm = register_module("norm", nn::BatchNorm1d(16));
    drop = register_module("drop", nn::Dropout(0.3));
    second = register_module("second", nn::Linear(nn::LinearOptions(16, 3).bias(false)));
  }
  at::Tensor forward(const at::Tensor& input) { return second(drop(at::relu(norm(first(input))))); }
  nn::Linear first = nullptr;
  nn::BatchNorm1d norm = nullptr;
  nn::Dropout drop = nullptr;
  nn::Linear second = nullptr;
};
TORCH_MODULE(Net);

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(Net&)>;

std::unique_ptr<optim::Optimizer> TwoGroups(Net& net) {
  std::vector<at::Tensor> decayed = {net->first->weight, net->second->weight};
  std::vector<at::Tensor> plain = {net->first->bias, net->norm->weight, net->norm->bias};
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(
      decayed, std::make_unique<optim::AdamWOptions>(optim::AdamWOptions(1e-2).weight_decay(0.1)));
  groups.emplace_back(plain, std::make_unique<optim::AdamWOptions>(
                                 optim::AdamWOptions(3e-3).weight_decay(0).amsgrad(true)));
  return std::make_unique<optim::AdamW>(std::move(groups));
}

struct Named {
  const char* name;
  MakeOptimizer make;
};

std::vector<Named> Optimizers() {
  return {
      {"AdamW",
       [](Net& net) {
         return std::make_unique<optim::AdamW>(net->parameters(), optim::AdamWOptions(1e-2));
       }},
      {"AdamW with amsgrad and two groups", TwoGroups},
      {"Adam",
       [](Net& net) {
         return std::make_unique<optim::Adam>(net->parameters(), optim::AdamOptions(1e-2));
       }},
      {"SGD with momentum",
       [](Net& net) {
         return std::make_unique<optim::SGD>(net->parameters(),
                                             optim::SGDOptions(1e-2).momentum(0.9).nesterov(true));
       }},
      {"plain SGD",
       [](Net& net) {
         return std::make_unique<optim::SGD>(net->parameters(), optim::SGDOptions(1e-2));
       }},
  };
}

// A training program in small: what Describe() shows of it is all that it is.
struct Program {
  explicit Program(const MakeOptimizer& make, bool with_names = true)
      : optimizer(make(net)),
        model_state(StateOf(net)),
        optimizer_state(with_names ? StateOf(*optimizer, net) : StateOf(*optimizer)),
        rng_state(RngState()) {}

  double TrainStep(std::int64_t step) {
    at::Generator data_generator = at::make_generator<at::CPUGeneratorImpl>(step);
    const at::Tensor input = at::randn({8, 6}, data_generator);
    const at::Tensor loss =
        net->forward(input).pow(2).mean() + net->forward(input * 2).sum() * 1e-3;
    for (auto& group : optimizer->param_groups()) {
      group.options().set_lr(group.options().get_lr() * 0.97);  // a schedule
    }
    optimizer->zero_grad();
    loss.backward();
    optimizer->step();
    return loss.item<double>();
  }

  std::vector<double> Train(std::int64_t from, std::int64_t to) {
    std::vector<double> losses;
    for (std::int64_t step = from; step < to; ++step) losses.push_back(TrainStep(step));
    return losses;
  }

  std::vector<test::MemoryCheckpoint> Save() {
    std::vector<test::MemoryCheckpoint> saved;
    for (Stateful* part : {model_state.get(), optimizer_state.get(), rng_state.get()}) {
      Result<test::MemoryCheckpoint> checkpoint = test::Save(*part);
      EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
      saved.push_back(*std::move(checkpoint));
    }
    return saved;
  }

  Status Load(const std::vector<test::MemoryCheckpoint>& saved) {
    PERDURE_RETURN_IF_ERROR(test::Load(saved.at(0), *model_state));
    PERDURE_RETURN_IF_ERROR(test::Load(saved.at(1), *optimizer_state));
    return test::Load(saved.at(2), *rng_state);
  }

  Net net;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<Stateful> model_state;
  std::unique_ptr<Stateful> optimizer_state;
  std::unique_ptr<Stateful> rng_state;
};

void ExpectSame(const std::vector<test::MemoryCheckpoint>& a,
                const std::vector<test::MemoryCheckpoint>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t part = 0; part < a.size(); ++part) {
    EXPECT_EQ(a[part].blobs, b[part].blobs);
    ASSERT_EQ(a[part].tensors.size(), b[part].tensors.size());
    for (const auto& [name, tensor] : a[part].tensors) {
      const auto found = b[part].tensors.find(name);
      ASSERT_NE(found, b[part].tensors.end()) << name;
      EXPECT_EQ(tensor.bytes, found->second.bytes) << name;
    }
  }
}

class ResumedTraining : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

// Restored into a program that was built anew with other random numbers: the same losses, bit by
// bit, and the same state in the end.
TEST_P(ResumedTraining, GoesOnAsIfNothingHadHappened) {
  for (const Named& optimizer : Optimizers()) {
    SCOPED_TRACE(optimizer.name);
    for (const std::int64_t at : {0, 1, 7}) {
      SCOPED_TRACE(testing::Message() << "saved after " << at << " steps");
      ::torch::manual_seed(1);
      Program first(optimizer.make, GetParam());
      first.Train(0, at);
      const std::vector<test::MemoryCheckpoint> saved = first.Save();
      const std::vector<double> losses = first.Train(at, at + 10);
      const std::vector<test::MemoryCheckpoint> final_state = first.Save();

      ::torch::manual_seed(99);
      Program second(optimizer.make, GetParam());
      const Status loaded = second.Load(saved);
      ASSERT_TRUE(loaded.ok()) << loaded.ToString();
      EXPECT_EQ(second.Train(at, at + 10), losses);
      ExpectSame(second.Save(), final_state);
    }
  }
}

// The body of a program may run again in the same process: what has stepped goes back to before.
TEST_P(ResumedTraining, GoesBackInAProgramThatHasTrained) {
  for (const Named& optimizer : Optimizers()) {
    SCOPED_TRACE(optimizer.name);
    for (const std::int64_t at : {0, 3}) {
      ::torch::manual_seed(5);
      Program program(optimizer.make, GetParam());
      program.Train(0, at);
      const std::vector<test::MemoryCheckpoint> saved = program.Save();
      const std::vector<double> losses = program.Train(at, at + 5);
      const Status loaded = program.Load(saved);
      ASSERT_TRUE(loaded.ok()) << loaded.ToString();
      EXPECT_EQ(program.Train(at, at + 5), losses);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Naming, ResumedTraining, testing::Values(true, false),
                         [](const auto& with_names) {
                           return with_names.param ? "names" : "numbers";
                         });

TEST(ModuleState, NamesWhenAndHow) {
  Net net;
  const std::unique_ptr<Stateful> part = StateOf(net);
  const Result<State> state = part->Describe();
  ASSERT_TRUE(state.ok()) << state.status().ToString();
  std::vector<std::string> in_update;
  std::vector<std::string> at_any_time;
  for (const TensorEntry& entry : state->tensors) {
    (entry.changes == Changes::kInUpdate ? in_update : at_any_time).push_back(entry.name);
    EXPECT_EQ(entry.holders, Holders::kReplicated);
  }
  EXPECT_THAT(in_update, UnorderedElementsAre("first.weight", "first.bias", "norm.weight",
                                              "norm.bias", "second.weight"));
  EXPECT_THAT(at_any_time, UnorderedElementsAre("norm.running_mean", "norm.running_var",
                                                "norm.num_batches_tracked"));
}

TEST(ModuleState, ASharedParameterIsListedUnderBothNames) {
  struct TiedImpl : nn::Module {
    TiedImpl() {
      const at::Tensor weight = register_parameter("embedding", at::randn({4, 4}));
      register_parameter("head", weight);
    }
  };
  const auto module = std::make_shared<TiedImpl>();
  const Result<State> state = StateOf(module)->Describe();
  ASSERT_TRUE(state.ok());
  // Two names for one memory: the checkpoint makes one tensor and an alias of it.
  ASSERT_EQ(state->tensors.size(), 2u);
  EXPECT_EQ(state->tensors[0].name, "embedding");
  EXPECT_EQ(state->tensors[1].name, "head");
  EXPECT_EQ(state->tensors[0].view.data, state->tensors[1].view.data);
}

TEST(ModuleState, AnEmptyModuleIsAnError) {
  const Net empty = nullptr;
  EXPECT_EQ(StateOf(empty)->Describe().status().code(), Code::kInvalidArgument);
}

TEST(OptimizerState, NamesAreForPeople) {
  Net net;
  optim::AdamW optimizer(net->parameters(), optim::AdamWOptions(1e-2));
  net->forward(at::randn({4, 6})).sum().backward();
  optimizer.step();
  Result<test::MemoryCheckpoint> saved = test::Save(*StateOf(optimizer, net));
  ASSERT_TRUE(saved.ok()) << saved.status().ToString();
  EXPECT_EQ(saved->tensors.count("exp_avg.first.weight"), 1u);
  EXPECT_EQ(saved->tensors.count("exp_avg_sq.norm.bias"), 1u);
  EXPECT_THAT(saved->blobs.at("steps"), HasSubstr("\"second.weight\":1"));
  EXPECT_THAT(saved->blobs.at("param_groups"), HasSubstr("\"lr\":0.01"));
  saved = test::Save(*StateOf(optimizer));
  EXPECT_EQ(saved->tensors.count("exp_avg.0.0"), 1u);
}

TEST(OptimizerState, AnotherOptimizerIsRefusedWithItsName) {
  Net net;
  optim::SGD sgd(net->parameters(), optim::SGDOptions(1e-2));
  optim::AdamW adamw(net->parameters(), optim::AdamWOptions(1e-2));
  const Result<test::MemoryCheckpoint> saved = test::Save(*StateOf(sgd, net));
  const Status refused = test::Load(*saved, *StateOf(adamw, net));
  EXPECT_THAT(refused.message(), HasSubstr("state of SGD, the program uses AdamW"));
}

TEST(OptimizerState, OtherGroupsAreRefused) {
  Net net;
  optim::AdamW one(net->parameters(), optim::AdamWOptions(1e-2));
  const std::unique_ptr<optim::Optimizer> two = TwoGroups(net);
  const Result<test::MemoryCheckpoint> saved = test::Save(*StateOf(one, net));
  EXPECT_THAT(test::Load(*saved, *StateOf(*two, net)).message(),
              HasSubstr("has 1 parameter groups, the program's has 2"));
  optim::AdamW fewer({net->first->weight}, optim::AdamWOptions(1e-2));
  EXPECT_THAT(test::Load(*saved, *StateOf(fewer, net)).message(),
              HasSubstr("was first.bias, is nothing"));
}

TEST(OptimizerState, AParameterWithoutANameIsNamed) {
  Net net;
  Net other;
  optim::AdamW optimizer(net->parameters(), optim::AdamWOptions(1e-2));
  EXPECT_THAT(StateOf(optimizer, other)->Describe().status().message(),
              HasSubstr("parameter 0 of group 0 is not among the names"));
}

TEST(OptimizerState, AnUnknownOptimizerIsAnError) {
  Net net;
  optim::RMSprop optimizer(net->parameters());
  EXPECT_EQ(StateOf(optimizer, net)->Describe().status().code(), Code::kUnimplemented);
}

TEST(RngState, DamagedBytesAreAnError) {
  BlobEntry blob;
  blob.name = "cpu";
  blob.bytes = "short";
  const std::unique_ptr<Stateful> part = RngState();
  EXPECT_FALSE(part->FinishRestore({blob}).ok());
  EXPECT_EQ(part->FinishRestore({}).code(), Code::kInvalidArgument);
  EXPECT_EQ(part->Describe()->blobs.at(0).holders, Holders::kPerRank);
}

}  // namespace
}  // namespace perdure::torch
