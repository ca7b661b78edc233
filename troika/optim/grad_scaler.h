// Loss scaling for gradients in float16, of which those under 6e-8 would be lost.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>

#include "troika/optim/flat_optimizer.h"

namespace troika::optim {

struct GradScalerOptions {
  double initial_scale = 65536;
  double growth_factor = 2;  // of the scale, after growth_interval steps without overflow
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  // If not, losses and gradients stay as they are, and no step is skipped.
  bool enabled = true;
};

// PyTorch's torch.cuda.amp.GradScaler, number for number (Micikevicius et al. 2018, arXiv
// 1710.03740, section 3.2):
//
//   scaler.scale(loss).backward();
//   scaler.unscale(optimizer);  // only where gradients are looked at before the step (clipping)
//   scaler.step(optimizer);     // not where a gradient has overflowed
//   scaler.update();
//
// With accumulation, scale each loss and do the rest once. With several optimizers, step each and
// update once: one overflow skips the optimizer it is of alone, and lowers the scale of all.
class GradScaler {
 public:
  // Whether a gradient overflowed on any rank, of whether one did here. To be given where ranks
  // hold different gradients (sharded ones); after an all-reduce, all see an overflow anyhow.
  using Agree = std::function<bool(bool found_here)>;

  // Throws Error(usage) for factors that would not grow or back off, and an interval under 1.
  explicit GradScaler(const GradScalerOptions& options = {}, Agree agree = {});

  // The loss times the scale; float16 becomes float32, as in PyTorch.
  at::Tensor scale(const at::Tensor& loss) const;
  // Divides the optimizer's gradients by the scale, in place. At most once a step, and before
  // step(): Error(usage) otherwise.
  void unscale(FlatOptimizer& optimizer);
  // Unscales unless that is done, then steps unless a gradient is infinite or NaN: parameters and
  // states stay to the bit then. Whether it stepped; a schedule should not move on if not. Throws
  // Error(usage) when called twice before update(), or without any gradient.
  bool step(FlatOptimizer& optimizer);
  // The scale for the next step. Throws Error(usage) unless an optimizer was unscaled since the
  // last update().
  void update();

  float scale() const { return scale_; }

  // PyTorch's state_dict: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker,
  // as float64 scalars; empty when not enabled.
  NamedTensors state() const;
  // Throws Error(usage) for other names, and changes nothing then.
  void load_state(const NamedTensors& state);

 private:
  enum class State { ready, unscaled, stepped };
  struct Progress {
    State state = State::ready;
    bool overflowed = false;
  };

  GradScalerOptions options_;
  Agree agree_;
  float scale_;
  int64_t growth_tracker_ = 0;  // steps without overflow since the scale changed
  std::map<const FlatOptimizer*, Progress> progress_;  // since the last update()
};

}  // namespace troika::optim
