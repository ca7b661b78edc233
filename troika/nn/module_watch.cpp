#include "troika/nn/module_watch.h"

#include "troika/compat/module_members.h"

namespace troika::nn {

ModuleWatch::ModuleWatch(const torch::nn::Module& module) : module_(&module) {
  compat::for_each_member(module, [this](const compat::ModuleMember& member) {
    entries_.push_back(entry_of(member.tensor));
    if (member.is_buffer && member.tensor.defined()) buffers_.push_back(member.tensor);
  });
}

ModuleWatch::Entry ModuleWatch::entry_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {nullptr, false, c10::ScalarType::Undefined, c10::kCPU};
  return {tensor.unsafeGetTensorImpl(), tensor.requires_grad(), tensor.scalar_type(),
          tensor.device()};
}

bool ModuleWatch::is_unchanged() const {
  // One struct, so that the lambda captures one pointer: a std::function stores no more without
  // allocating.
  struct {
    const std::vector<Entry>& entries;
    size_t at = 0;
    bool same = true;
  } state{entries_};
  compat::for_each_member(*module_, [&state](const compat::ModuleMember& member) {
    state.same = state.same && state.at < state.entries.size() &&
                 state.entries[state.at] == entry_of(member.tensor);
    ++state.at;
  });
  return state.same && state.at == entries_.size();
}

}  // namespace troika::nn
