#include "troika/nn/state.h"

#include <set>
#include <utility>

#include "troika/compat/torch.h"

namespace troika::nn {

namespace {

struct Kinds {
  bool parameters = true;
  bool buffers = true;
};

// Does not use Module::named_modules(), which needs a module owned by a shared_ptr.
void collect(const torch::nn::Module& module, const std::string& prefix, const Kinds& kinds,
             state::StateDict& state) {
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      if (item.value().defined()) state.emplace_back(prefix + item.key(), item.value());
    }
  };
  if (kinds.parameters) add(module.named_parameters(/*recurse=*/false));
  if (kinds.buffers) add(module.named_buffers(/*recurse=*/false));
  for (const auto& child : module.named_children()) {
    collect(*child.value(), prefix + child.key() + ".", kinds, state);
  }
}

state::StateDict collected(const torch::nn::Module& module, const Kinds& kinds, Ties ties) {
  state::StateDict state;
  collect(module, "", kinds, state);
  if (ties == Ties::once) {
    std::set<const void*> seen;
    std::erase_if(state, [&](const state::Entry& entry) {
      return !seen.insert(entry.second.unsafeGetTensorImpl()).second;
    });
  }
  return state;
}

}  // namespace

state::StateDict named_state(const torch::nn::Module& module, Ties ties) {
  return collected(module, {}, ties);
}

state::StateDict named_parameters(const torch::nn::Module& module) {
  return collected(module, {.buffers = false}, Ties::once);
}

state::StateDict named_buffers(const torch::nn::Module& module) {
  return collected(module, {.parameters = false}, Ties::once);
}

state::StateDict trained_parameters(const torch::nn::Module& module) {
  auto parameters = named_parameters(module);
  std::erase_if(parameters,
                [](const state::Entry& entry) { return !entry.second.requires_grad(); });
  return parameters;
}

int64_t parameter_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const auto& [name, tensor] : named_parameters(module)) count += tensor.numel();
  return count;
}

}  // namespace troika::nn
