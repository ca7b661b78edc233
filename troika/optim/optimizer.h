// LibTorch's optimizers by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace troika::optim {

struct OptimizerOptions {
  std::string name = "sgd";  // "sgd", "adam" or "adamw"
  double lr = 0.1;
  double weight_decay = 0.0;
  double momentum = 0.9;  // of sgd
  bool nesterov = false;  // of sgd
  double beta1 = 0.9;     // of adam and adamw
  double beta2 = 0.999;
  double eps = 1e-8;
};

const std::vector<std::string>& optimizer_names();

// Over these parameters, a tied one given once. Throws Error(usage) for an unknown name, naming the
// nearest, and for Nesterov without momentum.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> parameters,
                                                        const OptimizerOptions& options);

// Sets the rate of all parameter groups.
void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);

}  // namespace troika::optim
