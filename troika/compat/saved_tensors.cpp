#include "troika/compat/saved_tensors.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <string>
#include <utility>
#include <vector>

#include "troika/compat/autograd.h"
#include "troika/compat/torch.h"

namespace troika::compat {

namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariableHooks;

std::vector<SavedTensorHooks*>& hooks_of_thread() {
  thread_local std::vector<SavedTensorHooks*> stack;
  return stack;
}

class Hooks : public SavedVariableHooks {
 public:
  explicit Hooks(SavedTensorHooks& hooks) : hooks_(hooks) {}
  void call_pack_hook(const at::Tensor& tensor) override { unpack_ = hooks_.pack(tensor); }
  at::Tensor call_unpack_hook() override { return unpack_(); }

 private:
  SavedTensorHooks& hooks_;
  std::function<at::Tensor()> unpack_;
};

class HookedEngine : public Engine {
 public:
  HookedEngine() = default;
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    auto& stack = hooks_of_thread();
    if (stack.empty()) return nullptr;
    return std::make_unique<Hooks>(*stack.back());
  }
};

// Never destroyed, because its threads may outlive main().
Engine& hooked_engine() {
  static auto* engine = new HookedEngine;
  return *engine;
}

// Before the first backward pass of the process: LibTorch 2.x starts the threads of devices for one
// engine only, the first that runs.
[[maybe_unused]] const bool g_is_installed = [] {
  torch::autograd::set_default_engine_stub(hooked_engine);
  return true;
}();

class CountingUnpacks : public SavedTensorHooks {
 public:
  std::function<at::Tensor()> pack(const at::Tensor& tensor) override {
    return [this, kept = tensor.detach()] {
      ++count;
      return kept;
    };
  }

  int count = 0;
};

}  // namespace

SavedTensorGuard::SavedTensorGuard(SavedTensorHooks& hooks) {
  hooks_of_thread().push_back(&hooks);
}

SavedTensorGuard::~SavedTensorGuard() {
  hooks_of_thread().pop_back();
}

namespace {

NodePointer accumulator_of(const at::Tensor& tensor) {
  const bool has_one = tensor.defined() && tensor.requires_grad() && tensor.is_leaf();
  return has_one ? torch::autograd::impl::grad_accumulator(tensor) : nullptr;
}

}  // namespace

struct SavedTensor::Saved {
  // A leaf that goes through hooks only refers to this, as it expects the graph to keep it.
  NodePointer accumulator;
  torch::autograd::SavedVariable variable;
};

SavedTensor::SavedTensor(const at::Tensor& tensor)
    : saved_(
          std::make_unique<Saved>(Saved{accumulator_of(tensor), {tensor, /*is_output=*/false}})) {}

SavedTensor::~SavedTensor() = default;

at::Tensor SavedTensor::unpack() const {
  return saved_->variable.unpack();
}

bool may_throw_at(const at::Tensor& tensor) {
  const auto& node = tensor.grad_fn();
  return !node || node->name().find("CppNode") == std::string::npos;
}

bool saved_tensor_hooks_work() {
  static const bool work = [] {
    const at::AutoGradMode grad(true);
    const auto x = at::ones({1}).requires_grad_();
    CountingUnpacks unpacks;
    at::Tensor y;
    {
      const SavedTensorGuard guard(unpacks);
      y = x * x;
    }
    torch::autograd::grad({y}, {x});
    // Only counts calls: tensors without memory (fake_tensors.h) have no values to check.
    return unpacks.count == 2;  // d(x x) = saved x + saved x
  }();
  return work;
}

}  // namespace troika::compat
