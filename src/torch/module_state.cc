#include <fmt/format.h>

#include <unordered_set>

#include "perdure/torch.h"
#include "torch/guard.h"

namespace perdure::torch {
namespace {

template <class Item>
void AddDefined(const Item& item, NamedTensors& into) {
  if (item.value().defined()) into.emplace_back(item.key(), item.value());
}

// Adds what is defined and not yet in `seen`.
template <class Dictionary>
void Collect(const Dictionary& named, std::unordered_set<const c10::TensorImpl*>& seen,
             NamedTensors& into) {
  for (const auto& item : named) {
    const at::Tensor& tensor = item.value();
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) {
      into.emplace_back(item.key(), tensor);
    }
  }
}

class ModuleState final : public Stateful {
 public:
  ModuleState(std::shared_ptr<::torch::nn::Module> owned, ::torch::nn::Module* module)
      : owned_(std::move(owned)), module_(module) {}

  Result<State> Describe() override {
    return Guarded("listing the module's state", [&]() -> Result<State> {
      if (module_ == nullptr) {
        return Status(Code::kInvalidArgument, "the module is empty (nullptr)");
      }
      // Asked anew each time: a program may replace tensors or add modules.
      NamedTensors tensors;
      storages_.clear();
      // All names: the checkpoint notes that several of them are one tensor.
      for (const auto& item : module_->named_parameters()) AddDefined(item, tensors);
      const std::size_t parameters = tensors.size();
      for (const auto& item : module_->named_buffers()) AddDefined(item, tensors);
      State state;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const auto& [name, tensor] = tensors[i];
        Result<TensorView> view = ViewOf(tensor);
        if (!view.ok()) return view.status().WithContext(name);
        storages_.push_back(tensor.storage());
        TensorEntry entry;
        entry.name = name;
        entry.view = *std::move(view);
        entry.changes = i < parameters ? Changes::kInUpdate : Changes::kAtAnyTime;
        state.tensors.push_back(std::move(entry));
      }
      return state;
    });
  }

 private:
  const std::shared_ptr<::torch::nn::Module> owned_;  // null when borrowed
  ::torch::nn::Module* const module_;
  std::vector<c10::Storage> storages_;  // what the views point to, whatever becomes of the tensors
};

}  // namespace

NamedTensors ParametersOf(const ::torch::nn::Module& module) {
  Result<NamedTensors> parameters = Guarded("listing parameters", [&]() -> Result<NamedTensors> {
    NamedTensors named;
    std::unordered_set<const c10::TensorImpl*> seen;
    Collect(module.named_parameters(), seen, named);
    return named;
  });
  return parameters.ok() ? *std::move(parameters) : NamedTensors{};
}

std::unique_ptr<Stateful> StateOf(std::shared_ptr<::torch::nn::Module> module) {
  ::torch::nn::Module* const pointer = module.get();
  return std::make_unique<ModuleState>(std::move(module), pointer);
}

std::unique_ptr<Stateful> StateOf(::torch::nn::Module& module) {
  return std::make_unique<ModuleState>(nullptr, &module);
}

}  // namespace perdure::torch
