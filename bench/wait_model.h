// A model whose passes only wait, for benchmarks of pipelines with more ranks than cores.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "troika/compat/autograd.h"
#include "troika/compat/torch.h"
#include "troika/nn/model.h"

namespace troika {

// The durations of a block's passes.
struct BlockWaits {
  std::chrono::duration<double> forward, backward_input, backward_weight;
  int64_t outputs = 0;  // elements of the output for each sample; 0: as many as of the input
};

// Waits once for the gradient of its input and once for that of its weight, as a linear layer
// computes them.
class WaitBackward : public torch::autograd::Node {
 public:
  WaitBackward(const at::Tensor& input, const at::Tensor& weight, const BlockWaits& waits)
      : Node(torch::autograd::collect_next_edges(input, weight)),
        input_(input.sizes().vec()),
        weight_(weight.sizes().vec()),
        waits_(waits) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    torch::autograd::variable_list result(2);
    // The first block's input has no gradient; its layers compute those of their outputs instead.
    if (task_should_compute_output(0) || !should_compute_output(0)) {
      std::this_thread::sleep_for(waits_.backward_input);
      result[0] = waits_.outputs == 0 ? gradients[0] : at::zeros(input_);
    }
    if (task_should_compute_output(1)) {
      std::this_thread::sleep_for(waits_.backward_weight);
      result[1] = at::zeros(weight_);
    }
    return result;
  }

 private:
  const std::vector<int64_t> input_, weight_;
  const BlockWaits waits_;
};

inline at::Tensor wait_with(const BlockWaits& waits, const at::Tensor& input,
                            const at::Tensor& weight) {
  std::this_thread::sleep_for(waits.forward);
  const auto node = compat::make_node<WaitBackward>(input, weight, waits);
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    output = waits.outputs == 0 ? input.clone() : at::zeros({input.size(0), waits.outputs});
  }
  compat::set_history(output, node);
  return output;
}

// Returns a model with a block for each entry. Block i has one parameter of elements[i] elements,
// or of one if there are none.
inline std::shared_ptr<nn::Model> make_wait_model(const std::vector<BlockWaits>& blocks,
                                                  const std::vector<int64_t>& elements = {}) {
  auto model = std::make_shared<nn::Model>();
  for (size_t i = 0; i < blocks.size(); ++i) {
    auto module = std::make_shared<torch::nn::Module>();
    const int64_t own = elements.empty() ? 1 : elements[i];
    const auto weight = module->register_parameter("weight", at::zeros({own}));
    const auto name = "wait." + std::to_string(i);
    model->place(name, module);
    model->add_block({name, {name}, {}, [weight, waits = blocks[i]](const at::Tensor& x) {
                        return wait_with(waits, x, weight);
                      }});
  }
  return model;
}

}  // namespace troika
