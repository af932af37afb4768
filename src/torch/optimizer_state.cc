// The state of libtorch's optimizers.
//
// libtorch keeps it in two places: Optimizer::state(), a map from parameter to what the optimizer
// made for it at its first step, and the options of each parameter group. Here the tensors of the
// first become entries "<slot>.<parameter>", its step counts the blob "steps", and the options the
// blob "param_groups". What differs between optimizers is in a traits class each.
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_map>

#include "perdure/torch.h"
#include "torch/compat.h"
#include "torch/guard.h"

namespace perdure::torch {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSteps = "steps";
constexpr const char* kGroups = "param_groups";

// JSON has no infinity and no NaN, so those are text. Finite numbers come back bit by bit: nlohmann
// writes the shortest decimal that reads back as the same double.
Json Number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}
double Number(const Json& json) {
  return json.is_string() ? std::strtod(json.get<std::string>().c_str(), nullptr)
                          : json.get<double>();
}

template <class OptimizerType, class OptionsType, class ParamStateType>
struct AdamLike {
  using Optimizer = OptimizerType;
  using Options = OptionsType;
  using ParamState = ParamStateType;
  static constexpr bool kCountsSteps = true;

  template <class Visit>
  static void ForEachSlot(ParamState& state, Visit&& visit) {
    visit("exp_avg", state.exp_avg());
    visit("exp_avg_sq", state.exp_avg_sq());
    visit("max_exp_avg_sq", state.max_exp_avg_sq());
  }
  static std::int64_t StepsOf(const ParamState& state) { return state.step(); }
  static void SetSteps(ParamState& state, std::int64_t steps) { state.step(steps); }

  static Json Write(const Options& options) {
    return {{"lr", Number(options.lr())},
            {"betas", {Number(std::get<0>(options.betas())), Number(std::get<1>(options.betas()))}},
            {"eps", Number(options.eps())},
            {"weight_decay", Number(options.weight_decay())},
            {"amsgrad", options.amsgrad()}};
  }
  static void Read(const Json& json, Options& options) {
    options.lr(Number(json.at("lr")));
    options.betas(std::make_tuple(Number(json.at("betas").at(0)), Number(json.at("betas").at(1))));
    options.eps(Number(json.at("eps")));
    options.weight_decay(Number(json.at("weight_decay")));
    options.amsgrad(json.at("amsgrad").get<bool>());
  }
};

struct AdamWTraits : AdamLike<::torch::optim::AdamW, ::torch::optim::AdamWOptions,
                              ::torch::optim::AdamWParamState> {
  static constexpr const char* kName = "AdamW";
};
struct AdamTraits
    : AdamLike<::torch::optim::Adam, ::torch::optim::AdamOptions, ::torch::optim::AdamParamState> {
  static constexpr const char* kName = "Adam";
};

struct SgdTraits {
  using Optimizer = ::torch::optim::SGD;
  using Options = ::torch::optim::SGDOptions;
  using ParamState = ::torch::optim::SGDParamState;
  static constexpr const char* kName = "SGD";
  static constexpr bool kCountsSteps = false;

  template <class Visit>
  static void ForEachSlot(ParamState& state, Visit&& visit) {
    visit("momentum_buffer", state.momentum_buffer());
  }
  static std::int64_t StepsOf(const ParamState&) { return 0; }
  static void SetSteps(ParamState&, std::int64_t) {}

  static Json Write(const Options& options) {
    return {{"lr", Number(options.lr())},
            {"momentum", Number(options.momentum())},
            {"dampening", Number(options.dampening())},
            {"weight_decay", Number(options.weight_decay())},
            {"nesterov", options.nesterov()}};
  }
  static void Read(const Json& json, Options& options) {
    options.lr(Number(json.at("lr")));
    options.momentum(Number(json.at("momentum")));
    options.dampening(Number(json.at("dampening")));
    options.weight_decay(Number(json.at("weight_decay")));
    options.nesterov(json.at("nesterov").get<bool>());
  }
};

template <class Traits>
class OptimizerState final : public Stateful {
  using ParamState = typename Traits::ParamState;
  using Options = typename Traits::Options;

 public:
  // `names`: nullopt numbers the parameters.
  OptimizerState(typename Traits::Optimizer& optimizer, std::optional<NamedTensors> names)
      : optimizer_(optimizer), names_(std::move(names)) {}

  Result<State> Describe() override {
    return Guarded("listing the optimizer's state", [&]() -> Result<State> {
      PERDURE_ASSIGN_OR_RETURN(const std::vector<Group> groups, Groups());
      storages_.clear();
      State state;
      Json steps = Json::object();
      Json json_groups = Json::array();
      for (std::size_t g = 0; g < groups.size(); ++g) {
        Json names = Json::array();
        for (const auto& [name, parameter] : groups[g]) {
          names.push_back(name);
          ParamState* const of_parameter = Find(parameter);
          if (of_parameter == nullptr) continue;
          if (Traits::kCountsSteps) steps[name] = Traits::StepsOf(*of_parameter);
          PERDURE_RETURN_IF_ERROR(AddSlots(name, *of_parameter, state));
        }
        json_groups.push_back(
            {{"parameters", std::move(names)}, {"options", Traits::Write(OptionsOf(g))}});
      }
      AddBlob(kSteps, steps, state);
      AddBlob(kGroups, {{"optimizer", Traits::kName}, {"groups", std::move(json_groups)}}, state);
      return state;
    });
  }

  Status PrepareRestore(const SavedState& saved) override {
    return Guarded("preparing the optimizer's state", [&]() -> Status {
      PERDURE_ASSIGN_OR_RETURN(const std::vector<Group> groups, Groups());
      std::set<std::string> in_checkpoint;
      for (const SavedState::Tensor& tensor : saved.tensors) in_checkpoint.insert(tensor.name);
      for (const Group& group : groups) {
        for (const auto& [name, parameter] : group) Mirror(name, parameter, in_checkpoint);
      }
      return Ok();
    });
  }

  Status FinishRestore(const std::vector<BlobEntry>& blobs) override {
    return Guarded("restoring the optimizer's state", [&]() -> Status {
      std::map<std::string, Json> by_name;
      for (const BlobEntry& blob : blobs) {
        Json json = Json::parse(blob.bytes, nullptr, /*allow_exceptions=*/false);
        if (json.is_discarded()) {
          return Status(Code::kDataLoss, fmt::format("blob \"{}\" is not JSON", blob.name));
        }
        by_name.emplace(blob.name, std::move(json));
      }
      for (const char* const name : {kSteps, kGroups}) {
        if (by_name.count(name) == 0) {
          return Status(Code::kInvalidArgument,
                        fmt::format("the checkpoint has no blob \"{}\"; it does not hold the "
                                    "state of an optimizer",
                                    name));
        }
      }
      PERDURE_RETURN_IF_ERROR(ReadGroups(by_name[kGroups]));
      return ReadSteps(by_name[kSteps]);
    });
  }

 private:
  using Group = NamedTensors;

  Result<std::vector<Group>> Groups() const {
    std::unordered_map<const c10::TensorImpl*, std::string> known;
    if (names_.has_value()) {
      for (const auto& [name, tensor] : *names_) {
        if (tensor.defined()) known.emplace(tensor.unsafeGetTensorImpl(), name);
      }
    }
    std::vector<Group> groups;
    for (std::size_t g = 0; g < optimizer_.param_groups().size(); ++g) {
      const std::vector<at::Tensor>& parameters = optimizer_.param_groups()[g].params();
      groups.emplace_back();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        std::string name = fmt::format("{}.{}", g, i);
        if (names_.has_value()) {
          const auto found = known.find(parameters[i].unsafeGetTensorImpl());
          if (found == known.end()) {
            return Status(Code::kInvalidArgument,
                          fmt::format("parameter {} of group {} is not among the names given to "
                                      "StateOf(optimizer, …); give the names of all modules that "
                                      "the optimizer updates",
                                      i, g));
          }
          name = found->second;
        }
        groups.back().emplace_back(std::move(name), parameters[i]);
      }
    }
    return groups;
  }

  // Null while the optimizer has not stepped this parameter.
  ParamState* Find(const at::Tensor& parameter) const {
    auto& states = optimizer_.state();
    const auto found = states.find(StateKey(parameter));
    return found == states.end() ? nullptr : static_cast<ParamState*>(found->second.get());
  }

  Status AddSlots(const std::string& parameter_name, ParamState& of_parameter, State& into) {
    Status status;
    Traits::ForEachSlot(of_parameter, [&](const char* slot, at::Tensor& tensor) {
      if (!tensor.defined() || !status.ok()) return;
      TensorEntry entry;
      entry.name = fmt::format("{}.{}", slot, parameter_name);
      Result<TensorView> view = ViewOf(tensor);
      if (!view.ok()) {
        status = view.status().WithContext(entry.name);
        return;
      }
      entry.view = *std::move(view);
      entry.changes = Changes::kInUpdate;
      into.tensors.push_back(std::move(entry));
      storages_.push_back(tensor.storage());
    });
    return status;
  }

  static void AddBlob(const char* name, const Json& json, State& into) {
    BlobEntry blob;
    blob.name = name;
    blob.bytes = json.dump();
    into.blobs.push_back(std::move(blob));
  }

  // Gives the parameter the state that the checkpoint has of it: creates what the first step would
  // create, and drops all of it when the checkpoint was taken before that step.
  void Mirror(const std::string& name, const at::Tensor& parameter,
              const std::set<std::string>& in_checkpoint) {
    auto fresh = std::make_unique<ParamState>();
    ParamState* of_parameter = Find(parameter);
    ParamState& target = of_parameter != nullptr ? *of_parameter : *fresh;
    bool any = false;
    Traits::ForEachSlot(target, [&](const char* slot, at::Tensor& tensor) {
      if (in_checkpoint.count(fmt::format("{}.{}", slot, name)) == 0) return;
      any = true;
      if (!tensor.defined()) {
        tensor = at::zeros_like(parameter.detach(), at::MemoryFormat::Preserve);
      }
    });
    auto& states = optimizer_.state();
    if (!any) {
      states.erase(StateKey(parameter));
    } else if (of_parameter == nullptr) {
      states[StateKey(parameter)] = std::move(fresh);
    }
  }

  Options& OptionsOf(std::size_t group) const {
    return static_cast<Options&>(optimizer_.param_groups()[group].options());
  }

  Status ReadGroups(const Json& json) {
    PERDURE_ASSIGN_OR_RETURN(const std::vector<Group> groups, Groups());
    const std::string kind = json.at("optimizer").template get<std::string>();
    if (kind != Traits::kName) {
      return Status(Code::kInvalidArgument,
                    fmt::format("the checkpoint holds the state of {}, the program uses {}", kind,
                                Traits::kName));
    }
    const Json& saved = json.at("groups");
    if (saved.size() != groups.size()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("the checkpoint's optimizer has {} parameter groups, the "
                                "program's has {}",
                                saved.size(), groups.size()));
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const Json& names = saved[g].at("parameters");
      for (std::size_t i = 0; i < std::max(names.size(), groups[g].size()); ++i) {
        const std::string was = i < names.size() ? names[i].template get<std::string>() : "nothing";
        const std::string& is = i < groups[g].size() ? groups[g][i].first : "nothing";
        if (was != is) {
          return Status(
              Code::kInvalidArgument,
              fmt::format("parameter {} of the optimizer's group {} was {}, is {}", i, g, was, is));
        }
      }
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      Traits::Read(saved[g].at("options"), OptionsOf(g));
    }
    return Ok();
  }

  Status ReadSteps(const Json& json) {
    if (!Traits::kCountsSteps) return Ok();
    PERDURE_ASSIGN_OR_RETURN(const std::vector<Group> groups, Groups());
    for (const Group& group : groups) {
      for (const auto& [name, parameter] : group) {
        ParamState* const of_parameter = Find(parameter);
        if (of_parameter == nullptr) continue;
        if (!json.contains(name)) {
          return Status(Code::kDataLoss,
                        fmt::format("the checkpoint has no step count of parameter {}", name));
        }
        Traits::SetSteps(*of_parameter, json.at(name).template get<std::int64_t>());
      }
    }
    return Ok();
  }

  typename Traits::Optimizer& optimizer_;
  const std::optional<NamedTensors> names_;
  std::vector<c10::Storage> storages_;  // what the views point to, whatever becomes of the tensors
};

class UnknownOptimizer final : public Stateful {
 public:
  Result<State> Describe() override {
    return Status(Code::kUnimplemented,
                  "the state of this optimizer is not known: AdamW, Adam and SGD are");
  }
};

std::unique_ptr<Stateful> Make(::torch::optim::Optimizer& optimizer,
                               std::optional<NamedTensors> names) {
  if (auto* const adamw = dynamic_cast<::torch::optim::AdamW*>(&optimizer)) {
    return std::make_unique<OptimizerState<AdamWTraits>>(*adamw, std::move(names));
  }
  if (auto* const adam = dynamic_cast<::torch::optim::Adam*>(&optimizer)) {
    return std::make_unique<OptimizerState<AdamTraits>>(*adam, std::move(names));
  }
  if (auto* const sgd = dynamic_cast<::torch::optim::SGD*>(&optimizer)) {
    return std::make_unique<OptimizerState<SgdTraits>>(*sgd, std::move(names));
  }
  return std::make_unique<UnknownOptimizer>();
}

}  // namespace

std::unique_ptr<Stateful> StateOf(::torch::optim::Optimizer& optimizer) {
  return Make(optimizer, std::nullopt);
}

std::unique_ptr<Stateful> StateOf(::torch::optim::Optimizer& optimizer, NamedTensors names) {
  return Make(optimizer, std::move(names));
}

}  // namespace perdure::torch
