// Training on parameter servers: what it supports, and its exchange.
#pragma once

#include <memory>

#include "troika/comm/group.h"
#include "troika/layout/plan.h"
#include "troika/parallel/exchange.h"
#include "troika/train/options/options.h"
#include "troika/train/task/optimizer_recipe.h"

namespace troika::train {

// Makes the exchange of a plan with servers. Throws Error(usage) that names the option for clipped
// gradients, for optimizers that servers do not have, for a precision with 16-bit parameters or a
// loss scale, for parameters on a GPU, for compressed gradients, for offloaded states, and for
// filters that would change what sequential steps mean or keep gradients out of checkpoints. Called
// by all ranks; blocks.
std::unique_ptr<parallel::Exchange> make_served_exchange(const layout::Plan& plan,
                                                         const TrainOptions& options,
                                                         const OptimizerRecipe& recipe,
                                                         torch::nn::Module& module,
                                                         const comm::Group& group);

}  // namespace troika::train
