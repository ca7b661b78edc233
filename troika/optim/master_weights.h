// Float32 copies of parameters of half precision, for optimizers to step.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "troika/optim/flat_parameters.h"

namespace troika::optim {

// A step much smaller than a weight is lost in a weight of 8 or 11 significant bits; masters add
// such steps up (Micikevicius et al. 2018, arXiv 1710.03740, section 3.1):
//
//   MasterWeights masters(parameters);
//   auto optimizer = make_optimizer(masters.list(), options);
//   masters.take_gradients(); optimizer->step(); masters.give_weights();
//
// Masters and their gradients lie one after the other in memory. They are what a checkpoint should
// hold: the parameters are their roundings.
class MasterWeights {
 public:
  // Masters on `device` of float16 or bfloat16 tensors, which start them, or of tensors of any
  // floating type on another device. Throws Error(usage), naming it, for another parameter.
  explicit MasterWeights(std::vector<Parameter> parameters,
                         c10::Device device = c10::DeviceType::CPU);

  // In float32, with the names of their parameters.
  const std::vector<Parameter>& list() const { return masters_; }
  // Gives each master the gradient of its parameter; none where that has none.
  void take_gradients();
  // Rounds the masters to their parameters.
  void give_weights();

 private:
  std::vector<Parameter> parameters_;
  std::vector<Parameter> masters_;
  std::vector<at::Tensor> gradients_;  // views into one tensor, in the shapes of the masters
};

}  // namespace troika::optim
