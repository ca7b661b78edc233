// Optimizers by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "troika/optim/flat_optimizer.h"

namespace troika::optim {

struct OptimizerOptions {
  // "sgd", "adam" (Kingma and Ba, 2015), "adamw" (Loshchilov and Hutter, 2019), "adagrad" (Duchi et
  // al., 2011): as in PyTorch.
  // "lars": You, Gitman and Ginsburg 2017 (arXiv 1708.03888), algorithm 1. Weight decay is part of
  // the gradient, and the rate is applied before the momentum.
  // "lamb": You et al. 2020 (arXiv 1904.00962), algorithm 2, with the identity as scaling function.
  // "adamw_8bit": adamw with both moments in 8 bits, in blocks (after Dettmers et al. 2022, arXiv
  // 2110.02861; with our own codes, see kernels.h): 2 bytes per parameter instead of 8. Tensors
  // under 4096 elements keep full moments.
  std::string name = "sgd";
  double lr = 0.1;
  double weight_decay = 0.0;
  // Whether one-dimensional tensors (biases, normalisations) decay as well; if false, LARS and LAMB
  // also step them at the plain rate.
  bool decay_vectors = true;
  double momentum = 0.9;  // sgd and lars
  bool nesterov = false;  // sgd
  double beta1 = 0.9;     // adam, adamw, adamw_8bit and lamb
  double beta2 = 0.999;
  double eps = 1e-8;                 // these and adagrad
  double trust_coefficient = 0.001;  // lars: eta in the paper
  // A folder for files that hold the states; pages are in memory only while they are used. Empty:
  // states are in memory. Not supported by adamw_8bit.
  std::string offload = {};
};

const std::vector<std::string>& optimizer_names();

// Whether the optimizer can step parameters on another device than the CPU: true for sgd, adam,
// adamw and adagrad without offload.
bool steps_on_devices(const OptimizerOptions& options);

// Returns the multiple of elements at which a parameter may be cut into shards that are stepped
// separately: 1, or the block size for adamw_8bit. See FlatOptimizer::complete_sums_by().
int64_t shard_multiple(const std::string& name);

// Makes an optimizer over these parameters; a tied parameter must be given once. decay_vectors may
// clear `Parameter::decay`. Throws Error(usage) for an unknown name, naming the nearest known one,
// for Nesterov without momentum, and for parameters that FlatParameters refuses.
std::unique_ptr<FlatOptimizer> make_optimizer(std::vector<Parameter> parameters,
                                              const OptimizerOptions& options);
// The same, with the parameters' indices as names.
std::unique_ptr<FlatOptimizer> make_optimizer(const std::vector<at::Tensor>& parameters,
                                              const OptimizerOptions& options);

}  // namespace troika::optim
