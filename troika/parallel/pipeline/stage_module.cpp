#include "troika/parallel/pipeline/stage_module.h"

#include <map>

#include "troika/compat/torch.h"
#include "troika/nn/state.h"

namespace troika::parallel {

namespace {

// A module that makes its sub-modules on demand.
class Folder : public torch::nn::Module {
 public:
  // Registers a tensor under a dotted name.
  void add(const std::string& name, const at::Tensor& tensor, bool is_buffer) {
    const auto dot = name.find('.');
    if (dot != std::string::npos) {
      return folder(name.substr(0, dot)).add(name.substr(dot + 1), tensor, is_buffer);
    }
    if (is_buffer) {
      register_buffer(name, tensor);
    } else {
      register_parameter(name, tensor, tensor.requires_grad());
    }
  }

 private:
  Folder& folder(const std::string& name) {
    auto& found = folders_[name];
    if (!found) found = register_module(name, std::make_shared<Folder>());
    return *found;
  }

  std::map<std::string, std::shared_ptr<Folder>> folders_;
};

}  // namespace

std::set<std::string> tensors_of_blocks(const nn::Model& model, size_t begin, size_t end) {
  std::set<std::string> result;
  for (size_t i = begin; i < end; ++i) {
    const auto& block = model.blocks()[i];
    for (const auto& [name, tensor] : model.owned_state(block)) result.insert(name);
    result.insert(block.borrows.begin(), block.borrows.end());
  }
  return result;
}

std::shared_ptr<torch::nn::Module> module_of(const nn::Model& model,
                                             const std::set<std::string>& names) {
  const auto result = std::make_shared<Folder>();
  const auto add = [&](const state::StateDict& entries, bool is_buffer) {
    for (const auto& [name, tensor] : entries) {
      if (names.contains(name)) result->add(name, tensor, is_buffer);
    }
  };
  add(nn::named_parameters(model), false);
  add(nn::named_buffers(model), true);
  return result;
}

}  // namespace troika::parallel
