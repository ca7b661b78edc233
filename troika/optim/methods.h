// The implementations behind make_optimizer().
#pragma once

#include <memory>

#include "troika/optim/flat_optimizer.h"

namespace troika::optim {

struct OptimizerOptions;

std::unique_ptr<FlatOptimizer> make_sgd(FlatParameters parameters, const OptimizerOptions& options);
std::unique_ptr<FlatOptimizer> make_adam(FlatParameters parameters, const OptimizerOptions& options,
                                         bool decoupled);
std::unique_ptr<FlatOptimizer> make_adagrad(FlatParameters parameters,
                                            const OptimizerOptions& options);
std::unique_ptr<FlatOptimizer> make_lars(FlatParameters parameters,
                                         const OptimizerOptions& options);
std::unique_ptr<FlatOptimizer> make_lamb(FlatParameters parameters,
                                         const OptimizerOptions& options);
std::unique_ptr<FlatOptimizer> make_adamw_8bit(FlatParameters parameters,
                                               const OptimizerOptions& options);

// Returns the factors of Adam's step number `steps` (from 1); `decoupled` selects AdamW's weight
// decay.
kernels::Adam adam_factors(const OptimizerOptions& options, double rate, double weight_decay,
                           int64_t steps, bool decoupled);

}  // namespace troika::optim
