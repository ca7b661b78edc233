// Loss scaling for float16 gradients, which cannot represent values below 6e-8.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>

#include "troika/optim/flat_optimizer.h"

namespace troika::optim {

struct GradScalerOptions {
  double initial_scale = 65536;
  double growth_factor = 2;  // applied after growth_interval steps without overflow
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  // If false, losses and gradients are unchanged, and no step is skipped.
  bool enabled = true;
};

// PyTorch's torch.cuda.amp.GradScaler, with the same results (Micikevicius et al. 2018, arXiv
// 1710.03740, section 3.2):
//
//   scaler.scale(loss).backward();
//   scaler.unscale(optimizer);  // only where gradients are looked at before the step (clipping)
//   scaler.step(optimizer);     // not where a gradient has overflowed
//   scaler.update();
//
// With gradient accumulation, scale each loss and do the rest once. With several optimizers, step
// each and update once: an overflow skips only its own optimizer, and lowers the common scale.
class GradScaler {
 public:
  // Returns whether a gradient overflowed on any rank. Required if ranks hold different gradients
  // (sharded ones); after an all-reduce, all ranks see the same overflow.
  using FlagReduction = std::function<bool(bool found_here)>;

  // Throws Error(usage) for factors that do not grow or back off, and for an interval under 1.
  explicit GradScaler(const GradScalerOptions& options = {}, FlagReduction any_rank = {});

  // Returns the loss times the scale; float16 becomes float32, as in PyTorch.
  at::Tensor scale(const at::Tensor& loss) const;
  // Divides the optimizer's gradients by the scale, in place. Throws Error(usage) if called twice
  // in a step or after step().
  void unscale(FlatOptimizer& optimizer);
  // Unscales unless unscale() was called; then steps, unless a gradient is infinite or NaN: then
  // parameters and states stay bitwise unchanged. Returns whether it stepped; a schedule should not
  // advance otherwise. Throws Error(usage) when called twice before update(), or without any
  // gradient.
  bool step(FlatOptimizer& optimizer);
  // Computes the scale for the next step. Throws Error(usage) unless an optimizer was unscaled
  // since the last update().
  void update();

  float scale() const { return scale_; }

  // Returns PyTorch's state_dict: scale, growth_factor, backoff_factor, growth_interval,
  // _growth_tracker, as float64 scalars; empty if not enabled.
  NamedTensors state() const;
  // Throws Error(usage) for other names, and then changes nothing.
  void load_state(const NamedTensors& state);

 private:
  enum class State { ready, unscaled, stepped };
  struct Progress {
    State state = State::ready;
    bool overflowed = false;
  };

  GradScalerOptions options_;
  FlagReduction any_rank_;
  float scale_;
  int64_t growth_tracker_ = 0;  // steps without overflow since the scale changed
  std::map<const FlatOptimizer*, Progress> progress_;  // since the last update()
};

}  // namespace troika::optim
