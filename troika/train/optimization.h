// The optimizer of a run, with what its precision asks for around it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "troika/nn/precision.h"
#include "troika/optim/grad_scaler.h"
#include "troika/optim/master_weights.h"
#include "troika/optim/optimizer.h"

namespace troika::train {

// Float32 masters of parameters in half precision; a scaled loss where gradients are in float16.
class Optimization {
 public:
  Optimization(const nn::Precision& precision, std::vector<optim::Parameter> parameters,
               const optim::OptimizerOptions& options);

  double learning_rate() const { return optimizer_->learning_rate(); }
  void set_learning_rate(double rate) { optimizer_->set_learning_rate(rate); }

  // What to call backward() on for this loss.
  at::Tensor scaled(const at::Tensor& loss) const;
  // Steps over gradients that are the same on all ranks; not where one has overflowed.
  void step();

  // Steps that an overflow has cost so far.
  int64_t skipped() const { return skipped_; }
  // Nothing without loss scaling.
  std::optional<double> loss_scale() const;
  // Float32 under the names of the parameters they are of; none where those are not in half
  // precision.
  optim::NamedTensors masters() const;

 private:
  std::optional<optim::MasterWeights> masters_;
  std::optional<optim::GradScaler> scaler_;
  std::unique_ptr<optim::FlatOptimizer> optimizer_;
  int64_t skipped_ = 0;
};

}  // namespace troika::train
