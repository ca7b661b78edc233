// Local SGD: replicas that train independently for some steps and are then averaged, for links too
// slow to carry gradients in every step.
#pragma once

#include <cstdint>
#include <vector>

#include "troika/comm/group.h"
#include "troika/parallel/exchange.h"

namespace troika::parallel {

struct LocalStepsOptions {
  int64_t period = 1;      // local steps of each rank between two averages
  bool copy_state = true;  // see make_same()
};

// Local SGD (Stich, ICLR 2019, arXiv 1805.09767, algorithm 1): step() steps the optimizer with only
// this rank's gradient. Ranks average after each `period` steps and in synchronize_replicas(),
// which ends a round early. After an average all ranks hold the same bits. Parameters that require
// a gradient become their mean over the ranks. Buffers of floating types become their mean over the
// ranks too, since the averaged model needs statistics of all ranks' data; other buffers, such as
// counters, become rank 0's. The optimizer's states stay local to each rank. Only averages move
// data, about as many bytes as one average of gradients.
//
// With begin_step(), means are weighted by each rank's weights, summed over the round. A rank with
// weight 0 skips the optimizer step. Ranks learn only at the end of a round that none of them had
// weight.
//
// With period 1 and plain SGD a step equals DataParallel's up to rounding, except for buffers. On a
// single rank, the step is bitwise equal to the optimizer's own.
//
// Parameters must be acceptable to optim::FlatParameters. The set of parameters that require a
// gradient must not change.
class LocalSteps : public Exchange {
 public:
  // Checks that all ranks hold the same module, and copies rank 0's state. Throws Error(usage) for
  // options out of range. Blocks.
  LocalSteps(torch::nn::Module& module, comm::Group group, const LocalStepsOptions& options);

  bool begin_step(double weight) override;
  void finish_backward() override {}
  // clip_grad_norm() bounds the norm of this rank's own gradients.
  std::vector<optim::Parameter> parameters() const override { return parameters_; }
  void step_by(const std::function<void()>& update) override;
  void synchronize_replicas() override;
  // Returns "round" (steps since the last average), and this rank's "weight" in the round if
  // begin_step() was called.
  optim::NamedTensors state() const override;
  void load_state(const optim::NamedTensors& state) override;
  bool set_syncing(bool) override { return true; }

 private:
  bool average();
  void average_buffers(double factor);

  torch::nn::Module& module_;
  comm::Group group_;
  const LocalStepsOptions options_;
  std::vector<optim::Parameter> parameters_;  // that require a gradient
  int64_t round_ = 0;                         // steps since the last average
  double weight_ = 0;                         // of this rank, summed over this round
  bool weighted_ = false;                     // begin_step() was called in this round
  bool idle_ = false;                         // this rank has weight 0 in this step
  bool finished_ = false;                     // no rank had weight in the last round
};

}  // namespace troika::parallel
