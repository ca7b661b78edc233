#include "troika/nn/sequential.h"

#include <torch/nn/modules/dropout.h>

#include <string>

#include "troika/nn/dropout.h"

namespace troika::nn {

std::shared_ptr<Model> from_sequential(const torch::nn::Sequential& sequential) {
  auto model = std::make_shared<Model>();
  size_t index = 0;
  for (const auto& child : sequential->named_children()) {
    const std::string& name = child.key();
    model->place(name, child.value());
    if (const auto dropout = std::dynamic_pointer_cast<torch::nn::DropoutImpl>(child.value())) {
      // Uses nn::dropout(), whose masks can be keyed.
      model->add_block({name, {name}, {}, [dropout](const at::Tensor& input) {
                          return dropout->is_training() ? nn::dropout(input, dropout->options.p())
                                                        : input;
                        }});
      ++index;
      continue;
    }
    // Only the type-erased AnyModule knows forward; the lambda keeps its Sequential alive.
    model->add_block({name, {name}, {}, [sequential, index](const at::Tensor& input) {
                        const auto module = sequential.ptr()->begin() + index;
                        return module->forward<at::Tensor>(input);
                      }});
    ++index;
  }
  return model;
}

}  // namespace troika::nn
