#include "troika/nn/sequential.h"

#include <string>

namespace troika::nn {

std::shared_ptr<Model> from_sequential(const torch::nn::Sequential& sequential) {
  auto model = std::make_shared<Model>();
  size_t index = 0;
  for (const auto& child : sequential->named_children()) {
    const std::string& name = child.key();
    model->place(name, child.value());
    // Forward is known to the erased AnyModule alone, which is kept alive through its Sequential.
    model->add_block({name, {name}, {}, [sequential, index](const at::Tensor& input) {
                        const auto module = sequential.ptr()->begin() + index;
                        return module->forward<at::Tensor>(input);
                      }});
    ++index;
  }
  return model;
}

}  // namespace troika::nn
