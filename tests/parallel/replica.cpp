#include "tests/parallel/replica.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/parallel/waves.h"

namespace troika::parallel {

Replica::Replica(const optim::OptimizerOptions& options) {
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::Tanh(), torch::nn::Linear(4, 2));
  module = net.ptr();
  module->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : module->parameters()) {
    parameter.copy_(waves(parameter.sizes(), 0.9, phase += 1));
  }
  optimizer = optim::make_optimizer(module->parameters(), options);
}

void Replica::backward(int rank, int step) {
  module->zero_grad(/*set_to_none=*/true);
  add_backward(rank, step);
}

void Replica::add_backward(int rank, int step, double factor) {
  const double phase = 10 * rank + 0.37 * step;
  auto net = torch::nn::Sequential(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(module));
  const auto outputs = net->forward(waves({5, 3}, 0.7, phase));
  (torch::mse_loss(outputs, waves({5, 2}, 1.3, phase)) * factor).backward();
}

std::vector<at::Tensor> Replica::values() const {
  std::vector<at::Tensor> result;
  for (const auto& parameter : module->parameters()) result.push_back(parameter.detach().clone());
  return result;
}

void Replica::assign(size_t parameter, const at::Tensor& value) {
  const torch::NoGradGuard no_grad;
  module->parameters()[parameter].copy_(value);
}

void expect_same_bits_on_all_ranks(const comm::Group& group,
                                   const std::vector<at::Tensor>& values) {
  for (const auto& value : values) {
    const auto all = torch::empty({group.size(), value.numel()}, value.options());
    group.all_gather(all, value);
    for (int r = 1; r < group.size(); ++r) EXPECT_TRUE(all[r].equal(all[0])) << "rank " << r;
  }
}

void expect_near(const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& oracle,
                 double tolerance) {
  ASSERT_EQ(values.size(), oracle.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_LE((values[i] - oracle[i]).abs().max().item<double>(),
              tolerance * oracle[i].abs().max().item<double>())
        << "parameter " << i;
  }
}

}  // namespace troika::parallel
