#include "tests/pretend_device/operators.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>
#include <set>
#include <stdexcept>

#include "tests/pretend_device/generator.h"
#include "tests/pretend_device/streams.h"

namespace troika::pretend {

namespace {

// Returns the operators whose result shapes depend on values in memory, so that the host must wait,
// as on any device.
const std::set<std::string>& shaped_by_values() {
  static const std::set<std::string> names{
      "aten::nonzero",  "aten::masked_select",     "aten::_unique2",
      "aten::_unique",  "aten::unique_dim",        "aten::unique_consecutive",
      "aten::bincount", "aten::repeat_interleave", "aten::index"};
  return names;
}

// CUDA takes indices from the host too.
bool takes_host_tensors(const std::string& name) {
  return name.find("index") != std::string::npos;
}

// A call of an operator. Its device tensors can be replaced by CPU tensors.
class OperatorCall {
 public:
  OperatorCall(const c10::OperatorHandle& op, const torch::jit::Stack& stack)
      : op_(op), schema_(op.schema()), name_(schema_.name()) {
    const size_t count = schema_.arguments().size();
    for (size_t i = 0; i < count; ++i) {
      take(schema_.arguments()[i], stack[stack.size() - count + i]);
    }
  }

  // Executes the call, and replaces the arguments on the stack by the results.
  void run(torch::jit::Stack& stack) {
    if (!device_) throw std::logic_error("pretend device: " + name_ + " without a tensor");
    const c10::DeviceGuard guard(*device_);
    if (generator_at_)
      draws_ = cpu_draws_of(draws_ ? *draws_ : default_generator(device_->index()));
    if (shaped_by_values().contains(name_)) return run_now(stack);
    // Runs the kernel on zeros, to get errors and shapes and to advance the generator. The queued
    // work draws from the generator's present state.
    const auto draws = frozen_draws();
    torch::jit::Stack trial = try_on_zeros();
    for (const auto& value : trial) {
      if (!value.isTensor() && !value.isTensorList()) return run_now(stack);
    }
    const torch::jit::Stack results = make_results(trial);
    queue(results, draws);
    torch::jit::drop(stack, schema_.arguments().size());
    for (const auto& result : results) stack.push_back(result);
  }

 private:
  // An argument, and its replacement: views for tensors of the device.
  struct Argument {
    c10::IValue value;
    std::vector<std::optional<View>> views = {};  // one a tensor
    bool is_written = false;
  };

  torch::jit::Stack try_on_zeros() {
    const auto attempt = [this] {
      auto stack = arguments_with([](const View& view) { return view.zeros(); });
      put_generator(stack, draws_);
      const auto given = stack;  // results may refer to arguments that the call drops
      on_device_thread([&] { op_.callBoxed(&stack); });
      return stack;
    };
    try {
      return attempt();
    } catch (const c10::Error& error) {
      // LibTorch 1.13 has no such CPU kernel, so this computes in float32 and rounds the results.
      if (std::string(error.what()).find("not implemented for 'Half'") == std::string::npos) throw;
      widens_halves_ = true;
      return attempt();
    }
  }

  static bool is_tensors(const c10::IValue& value) {
    return value.isTensorList() || value.isOptionalTensorList();
  }

  static std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
    std::vector<at::Tensor> result;
    if (value.isTensor()) result.push_back(value.toTensor());
    if (value.isTensorList()) result = value.toTensorVector();
    if (value.isOptionalTensorList()) {
      for (const auto& entry : value.toOptionalTensorVector()) {
        result.push_back(entry ? *entry : at::Tensor());
      }
    }
    return result;
  }

  void take(const c10::Argument& formal, const c10::IValue& value) {
    Argument argument{value};
    argument.is_written = formal.alias_info() != nullptr && formal.alias_info()->isWrite();
    const bool is_generator = formal.type()->str() == "Generator?";
    if (is_generator) {
      generator_at_ = arguments_.size();
      if (value.isGenerator()) draws_ = value.toGenerator();
    }
    if (value.isDevice() && value.toDevice().type() == c10::kPrivateUse1) {
      device_ = value.toDevice();
      argument.value = c10::Device(c10::kCPU);
    }
    for (const auto& tensor : tensors_in(value)) {
      argument.views.emplace_back();
      if (!tensor.defined()) continue;
      if (is_on_device(tensor)) {
        if (device_ && *device_ != tensor.device()) refuse_mixture(tensor);
        device_ = tensor.device();
        argument.views.back().emplace(tensor);
      } else if (tensor.dim() > 0 && !takes_host_tensors(name_)) {
        refuse_mixture(tensor);
      }
    }
    if (value.isTensor() && value.toTensor().defined() && argument.views[0] == std::nullopt) {
      // Like the arguments of a kernel: later changes by the host have no effect.
      const bool is_number = value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
      at::Tensor copy = value.toTensor().detach().clone();
      if (is_number) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
      argument.value = copy;
    }
    arguments_.push_back(std::move(argument));
  }

  [[noreturn]] void refuse_mixture(const at::Tensor& tensor) const {
    TORCH_CHECK(false, "pretend device: ", name_,
                " expects all tensors to be on one device, found ", tensor.device(),
                " beside others");
  }

  template <typename Replace>
  torch::jit::Stack arguments_with(const Replace& replace) const {
    torch::jit::Stack result;
    for (const auto& argument : arguments_) {
      if (argument.views.empty()) {
        result.push_back(argument.value);
        continue;
      }
      const auto tensors = tensors_in(argument.value);
      const auto one = [&](size_t i) {
        if (!argument.views[i]) return tensors[i];
        const at::Tensor own = replace(*argument.views[i]);
        return widens_halves_ && own.scalar_type() == at::kHalf ? own.to(at::kFloat) : own;
      };
      if (!is_tensors(argument.value)) {
        result.emplace_back(one(0));
        continue;
      }
      c10::List<at::Tensor> list;
      c10::List<c10::optional<at::Tensor>> optional_list;
      for (size_t i = 0; i < tensors.size(); ++i) {
        const auto tensor = one(i);
        list.push_back(tensor);
        optional_list.push_back(tensor.defined() ? c10::optional<at::Tensor>(tensor)
                                                 : c10::nullopt);
      }
      if (argument.value.isOptionalTensorList()) {
        result.emplace_back(optional_list);
      } else {
        result.emplace_back(list);
      }
    }
    return result;
  }

  void put_generator(torch::jit::Stack& stack,
                     const std::optional<at::Generator>& generator) const {
    if (generator_at_) {
      stack[*generator_at_] = generator ? c10::IValue(*generator) : c10::IValue();
    }
  }

  std::optional<at::Generator> frozen_draws() const {
    if (!draws_) return std::nullopt;
    at::Generator draws = *draws_;
    const std::lock_guard lock(draws.mutex());
    return draws.clone();
  }

  // Returns the argument that a result aliases by its annotation; null if there is none.
  const Argument* aliased(const c10::Argument& result) const {
    if (result.alias_info() == nullptr) return nullptr;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const auto* own = schema_.arguments()[i].alias_info();
      if (own != nullptr && own->beforeSets() == result.alias_info()->beforeSets()) {
        TORCH_CHECK(own->isWrite(), "pretend device: view ", name_, " has no kernel of its own");
        return &arguments_[i];
      }
    }
    return nullptr;
  }

  at::Tensor make_result(const at::Tensor& trial) const {
    if (!trial.defined()) return {};
    const bool was_wide = widens_halves_ && trial.scalar_type() == at::kFloat;
    return empty(trial.sizes(), trial.strides(), was_wide ? at::kHalf : trial.scalar_type(),
                 *device_);
  }

  torch::jit::Stack make_results(const torch::jit::Stack& trial) {
    torch::jit::Stack results;
    for (size_t r = 0; r < trial.size(); ++r) {
      if (const Argument* same = aliased(schema_.returns()[r])) {
        if (trial[r].isTensor()) resize_as(same->value.toTensor(), trial[r].toTensor());
        results.push_back(same->value);
      } else if (trial[r].isTensor()) {
        results.emplace_back(make_result(trial[r].toTensor()));
      } else {
        c10::List<at::Tensor> list;
        for (const auto& tensor : trial[r].toTensorVector()) list.push_back(make_result(tensor));
        results.emplace_back(list);
      }
    }
    return results;
  }

  // Resizes an `out` that had another shape.
  void resize_as(const at::Tensor& out, const at::Tensor& trial) {
    if (out.sizes() == trial.sizes()) return;
    out.resize_(trial.sizes());
    for (auto& argument : arguments_) {
      if (argument.is_written && argument.value.isTensor() &&
          argument.value.toTensor().is_same(out)) {
        argument.views[0].emplace(out);
      }
    }
  }

  void accesses(std::vector<Access>& result) const {
    for (const auto& argument : arguments_) {
      for (const auto& view : argument.views) {
        if (view) result.push_back(view->access(argument.is_written));
      }
    }
  }

  void queue(const torch::jit::Stack& results, const std::optional<at::Generator>& generator) {
    std::vector<Access> all;
    accesses(all);
    std::vector<std::vector<std::optional<View>>> made;
    for (size_t r = 0; r < results.size(); ++r) {
      auto& views = made.emplace_back();
      if (aliased(schema_.returns()[r]) != nullptr) continue;
      for (const auto& tensor : tensors_in(results[r])) {
        views.emplace_back();
        if (!tensor.defined()) continue;
        views.back().emplace(tensor);
        all.push_back(views.back()->access(true));
      }
    }
    const int stream = current_stream(device_->index());
    drop_device_tensors();
    enqueue(stream, name_, all, [self = *this, made, generator] {
      auto stack = self.arguments_with([](const View& view) { return view.in_operator(); });
      self.put_generator(stack, generator);
      const auto given = stack;  // as on zeros
      self.op_.callBoxed(&stack);
      if (self.widens_halves_) self.narrow_written(given);
      for (size_t r = 0; r < made.size(); ++r) {
        const auto tensors = tensors_in(stack[r]);
        for (size_t i = 0; i < made[r].size(); ++i) {
          if (made[r][i]) made[r][i]->in_operator().copy_(tensors[i]);
        }
      }
    });
  }

  // Copies values that were written to widened arguments to their original tensors.
  void narrow_written(const torch::jit::Stack& wide) const {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (!arguments_[i].is_written) continue;
      const auto tensors = tensors_in(wide[i]);
      for (size_t t = 0; t < tensors.size(); ++t) {
        const auto& view = arguments_[i].views[t];
        if (view) view->in_operator().copy_(tensors[t]);
      }
    }
  }

  // The queued work has views instead.
  void drop_device_tensors() {
    for (auto& argument : arguments_) {
      if (argument.views.empty()) continue;
      const auto tensors = tensors_in(argument.value);
      const auto kept = [&](size_t i) { return argument.views[i] ? at::Tensor() : tensors[i]; };
      if (argument.value.isTensor()) {
        argument.value = kept(0);
      } else if (argument.value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (size_t i = 0; i < tensors.size(); ++i) list.push_back(kept(i));
        argument.value = list;
      } else {
        c10::List<c10::optional<at::Tensor>> list;
        for (size_t i = 0; i < tensors.size(); ++i) list.push_back(kept(i));
        argument.value = list;
      }
    }
  }

  // Runs the call now, after all work of its stream. For results that the host needs.
  void run_now(torch::jit::Stack& stack) {
    const int stream = current_stream(device_->index());
    std::vector<Access> all;
    accesses(all);
    torch::jit::Stack values;
    enqueue(stream, name_, all, [&] {
      values = arguments_with([](const View& view) { return view.in_operator(); });
      put_generator(values, draws_);
      const auto given = values;
      op_.callBoxed(&values);
    });
    wait_on_host(stream);
    torch::jit::drop(stack, schema_.arguments().size());
    for (const auto& value : values) {
      stack.push_back(value.isTensor() ? c10::IValue(value.toTensor().to(*device_)) : value);
    }
  }

  const c10::OperatorHandle op_;
  const c10::FunctionSchema& schema_;
  const std::string name_;
  std::vector<Argument> arguments_;
  std::optional<c10::Device> device_;
  std::optional<size_t> generator_at_;
  std::optional<at::Generator> draws_;
  bool widens_halves_ = false;
};

void run_on_device(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  OperatorCall(op, *stack).run(*stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_device>());
}

}  // namespace

}  // namespace troika::pretend
