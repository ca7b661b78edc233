// Logs statistics of gradients and weights every n steps: norm, minimum, maximum and mean.
#pragma once

#include <string>
#include <vector>

#include "troika/optim/flat_parameters.h"
#include "troika/train/options/options.h"
#include "troika/train/run/callback.h"

namespace troika::train {

// Uses synchronized gradients before clipping and without loss scale, and weights before the step
// (float32 masters if there are any). Logs `gradient_norm`, `gradient_min`, `gradient_max` and
// `gradient_mean` over all parameters and, for example as `gradient_norm/fc.weight`, of each
// parameter or block; the same as `weight_*`. The norm is the 2-norm, computed in float64. With
// ZeRO, the numbers cover the shards of all ranks. With local steps, each logged number is the mean
// of the ranks' numbers. Parameters without a gradient are left out.
class StatisticsMonitor : public Callback {
 public:
  explicit StatisticsMonitor(const StatisticsOptions& options);

  std::string name() const override { return "statistics"; }
  void on_fit_start(FitContext& context) override;
  void on_before_optimizer_step(FitContext& context) override;

 private:
  // `scale` is the factor by which the tensors were multiplied.
  void log(FitContext& context, const std::string& what, const std::vector<at::Tensor>& tensors,
           double scale) const;

  const StatisticsOptions options_;
  const bool of_gradients_;
  const bool of_weights_;
  std::vector<optim::Parameter> parameters_;  // whole, or this rank's shards
  std::vector<size_t> groups_;                // the group of each parameter; 0: no own group
  std::vector<std::string> names_;            // of the groups; the first is all parameters together
};

}  // namespace troika::train
