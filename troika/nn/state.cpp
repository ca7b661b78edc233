#include "troika/nn/state.h"

#include <set>
#include <utility>

#include "troika/compat/torch.h"

namespace troika::nn {

namespace {

// Not Module::named_modules(): that needs a module owned by a shared_ptr.
void collect(const torch::nn::Module& module, const std::string& prefix,
             std::vector<StateTensor>& state) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (item.value().defined()) state.push_back({prefix + item.key(), item.value(), false});
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    if (item.value().defined()) state.push_back({prefix + item.key(), item.value(), true});
  }
  for (const auto& child : module.named_children()) {
    collect(*child.value(), prefix + child.key() + ".", state);
  }
}

}  // namespace

std::vector<StateTensor> named_state(const torch::nn::Module& module, Ties ties) {
  std::vector<StateTensor> state;
  collect(module, "", state);
  if (ties == Ties::once) {
    std::set<const void*> seen;
    std::erase_if(state, [&](const StateTensor& entry) {
      return !seen.insert(entry.tensor.unsafeGetTensorImpl()).second;
    });
  }
  return state;
}

std::vector<StateTensor> trained_parameters(const torch::nn::Module& module) {
  auto parameters = named_state(module);
  std::erase_if(parameters, [](const StateTensor& entry) {
    return entry.is_buffer || !entry.tensor.requires_grad();
  });
  return parameters;
}

int64_t parameter_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const StateTensor& entry : named_state(module)) {
    if (!entry.is_buffer) count += entry.tensor.numel();
  }
  return count;
}

}  // namespace troika::nn
