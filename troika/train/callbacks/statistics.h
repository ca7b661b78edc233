// Statistics of gradients and weights: norm, least, greatest and mean, logged every n steps.
#pragma once

#include <string>
#include <vector>

#include "troika/optim/flat_parameters.h"
#include "troika/train/options/options.h"
#include "troika/train/run/callback.h"

namespace troika::train {

// Takes gradients of all ranks, before clipping, without loss scale; and weights before the step,
// of float32 masters where there are any. Logs `gradient_norm`, `gradient_min`, `gradient_max` and
// `gradient_mean` of all together and, as `gradient_norm/fc.weight`, of each parameter or block;
// `weight_*` alike. The norm is the 2-norm, made in float64. With ZeRO ranks add up their shares;
// of local steps' gradients it is their mean. A parameter without gradient counts for nothing.
class StatisticsMonitor : public Callback {
 public:
  explicit StatisticsMonitor(const StatisticsOptions& options);

  std::string name() const override { return "statistics"; }
  void on_fit_start(FitContext& context) override;
  void on_before_optimizer_step(FitContext& context) override;

 private:
  // `scale` is what the tensors were multiplied by.
  void log(FitContext& context, const std::string& what, const std::vector<at::Tensor>& tensors,
           double scale) const;

  const StatisticsOptions options_;
  const bool of_gradients_;
  const bool of_weights_;
  std::vector<optim::Parameter> parameters_;  // whole, or this rank's part
  std::vector<size_t> groups_;                // of each; 0 is all
  std::vector<std::string> names_;            // of groups
};

}  // namespace troika::train
