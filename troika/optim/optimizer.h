// Optimizers by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "troika/optim/flat_optimizer.h"

namespace troika::optim {

struct OptimizerOptions {
  // "sgd", "adam" (Kingma and Ba, 2015), "adamw" (Loshchilov and Hutter, 2019), "adagrad" (Duchi et
  // al., 2011): what PyTorch's of these names do.
  // "lars": You, Gitman and Ginsburg 2017 (arXiv 1708.03888), algorithm 1. Weight decay is part of
  // the gradient, and the momentum holds the rate it was made with.
  // "lamb": You et al. 2020 (arXiv 1904.00962), algorithm 2, the scaling function the identity.
  // "adamw_8bit": adamw with both moments in 8 bits, block by block (after Dettmers et al. 2022,
  // arXiv 2110.02861; codes of our own, see kernels.h): 2 bytes a parameter in place of 8; tensors
  // under 4096 elements keep theirs whole.
  std::string name = "sgd";
  double lr = 0.1;
  double weight_decay = 0.0;
  // Whether tensors of one dimension (biases, normalisations) decay as well; if not, LARS and LAMB
  // also step them at the plain rate.
  bool decay_vectors = true;
  double momentum = 0.9;  // of sgd and lars
  bool nesterov = false;  // of sgd
  double beta1 = 0.9;     // of adam, adamw, adamw_8bit and lamb
  double beta2 = 0.999;
  double eps = 1e-8;                 // of these and adagrad
  double trust_coefficient = 0.001;  // of lars: its eta
  // A folder for files that hold the states, page by page in memory while they are used; empty: all
  // in memory. Not of adamw_8bit.
  std::string offload = {};
};

const std::vector<std::string>& optimizer_names();

// Whether it steps parameters on another device than the CPU: sgd, adam, adamw and adagrad without
// offload do.
bool steps_on_devices(const OptimizerOptions& options);

// Where parameters may be cut into pieces that are stepped apart: at multiples of so many of their
// elements. 1, but for adamw_8bit the size of its blocks. See FlatOptimizer::complete_sums_by().
int64_t piece_multiple(const std::string& name);

// Over these parameters, a tied one given once; `Parameter::decay` is narrowed by decay_vectors.
// Throws Error(usage) for an unknown name, naming the nearest, for Nesterov without momentum, and
// for parameters that FlatParameters refuses.
std::unique_ptr<FlatOptimizer> make_optimizer(std::vector<Parameter> parameters,
                                              const OptimizerOptions& options);
// With their numbers as names.
std::unique_ptr<FlatOptimizer> make_optimizer(const std::vector<at::Tensor>& parameters,
                                              const OptimizerOptions& options);

}  // namespace troika::optim
