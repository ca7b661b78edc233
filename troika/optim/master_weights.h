// Float32 copies of half-precision parameters, which optimizers step.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "troika/optim/flat_parameters.h"

namespace troika::optim {

// A step much smaller than a weight is lost in a weight with 8 or 11 significant bits; masters
// accumulate such steps (Micikevicius et al. 2018, arXiv 1710.03740, section 3.1):
//
//   MasterWeights masters(parameters);
//   auto optimizer = make_optimizer(masters.list(), options);
//   masters.take_gradients(); optimizer->step(); masters.give_weights();
//
// Masters and their gradients are contiguous in memory. Checkpoints should hold the masters, since
// the parameters are only their roundings.
class MasterWeights {
 public:
  // Makes masters on `device`, initialised from float16 or bfloat16 tensors, or from tensors of any
  // floating type on another device. Throws Error(usage), naming it, for any other parameter.
  explicit MasterWeights(std::vector<Parameter> parameters,
                         c10::Device device = c10::DeviceType::CPU);

  // The masters, in float32, with the names of their parameters.
  const std::vector<Parameter>& list() const { return masters_; }
  // Copies the parameters' gradients to the masters; undefined ones become undefined.
  void take_gradients();
  // Copies the masters to their parameters, rounded.
  void give_weights();

 private:
  std::vector<Parameter> parameters_;
  std::vector<Parameter> masters_;
  std::vector<at::Tensor> gradients_;  // views into one tensor, in the masters' shapes
};

}  // namespace troika::optim
