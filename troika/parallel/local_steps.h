// Local SGD and its relatives: replicas that train independently for some steps and are then
// averaged, for links too slow to carry gradients in every step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "troika/comm/group.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/exchange.h"

namespace troika::parallel {

struct LocalStepsOptions {
  int64_t period = 1;  // local steps of each rank between two averages
  // Number of first steps that average gradients, as DataParallel does: post-local SGD (Lin et al.,
  // ICLR 2020, arXiv 1808.07217, section 3).
  int64_t warmup_steps = 0;
  // The outer optimizer. If unset, parameters become their mean over the ranks: local SGD (Stich,
  // ICLR 2019, arXiv 1805.09767, algorithm 1). If set, this optimizer updates the parameters of the
  // last average with the outer gradient, the mean over ranks of (parameters at the last average -
  // parameters now). With diloco_outer() this is DiLoCo.
  std::optional<optim::OptimizerOptions> outer = {};
  // Options of the warm-up steps. `copy_state` also applies without warm-up steps.
  DataParallelOptions synchronous = {};
};

// Returns DiLoCo's outer optimizer, SGD with Nesterov momentum (Douillard et al. 2023, arXiv
// 2311.08105, algorithm 1 and section 3). The paper averages every 500 steps, and its inner
// optimizer is AdamW.
optim::OptimizerOptions diloco_outer(double lr = 0.7, double momentum = 0.9);

// After the warm-up, step() steps the optimizer with only this rank's gradient. Ranks average
// after each `period` steps and in synchronize_replicas(), which ends a round early. After an
// average all ranks hold the same bits. Parameters that require a gradient are averaged as
// LocalStepsOptions::outer says. Buffers of floating types become their mean over the ranks too,
// since the averaged model needs statistics of all ranks' data; other buffers, such as counters,
// become rank 0's. The optimizer's states stay local to each rank. Only averages move data, about
// as many bytes as one average of gradients.
//
// With begin_step(), means are weighted by each rank's weights, summed over the round. A rank with
// weight 0 skips the optimizer step. Ranks learn only at the end of a round that none of them had
// weight.
//
// With period 1 and plain SGD a step equals DataParallel's up to rounding, except for buffers. On a
// single rank without outer optimizer, the step is bitwise equal to the optimizer's own.
//
// Parameters must be acceptable to optim::FlatParameters. The set of parameters that require a
// gradient must not change.
class LocalSteps : public Exchange {
 public:
  // Checks that all ranks hold the same module, and copies rank 0's state. Throws Error(usage) for
  // options out of range. Blocks.
  LocalSteps(torch::nn::Module& module, comm::Group group, const LocalStepsOptions& options);
  ~LocalSteps() override;

  bool begin_step(double weight) override;
  void finish_backward() override;
  std::vector<optim::Parameter> parameters() const override { return parameters_; }
  // Returns this rank's own gradients (after the warm-up), so clip_grad_norm() bounds their local
  // norm.
  std::vector<at::Tensor> gradients() const override;
  void step_by(const std::function<void()>& update) override;
  void synchronize_replicas() override;
  // Returns "steps" (warm-up steps made), "round" (steps since the last average), this rank's
  // "weight" in the round if begin_step() was called, "anchor.<parameter>" and "outer.*" with an
  // outer optimizer, and during the warm-up DataParallel's state as "synchronous.*".
  optim::NamedTensors state() const override;
  void load_state(const optim::NamedTensors& state) override;
  void continue_step() override;
  bool set_syncing(bool syncing) override;

 private:
  void make_anchors();
  void end_warmup();
  bool average();
  void average_parameters(double factor);
  void average_buffers(double factor);

  torch::nn::Module& module_;
  comm::Group group_;
  const LocalStepsOptions options_;
  std::unique_ptr<DataParallel> synchronous_;    // during the warm-up
  std::vector<optim::Parameter> parameters_;     // parameters that require a gradient
  std::vector<at::Tensor> anchors_;              // with outer: parameters at the last average
  std::unique_ptr<optim::FlatOptimizer> outer_;  // steps the anchors
  int64_t steps_ = 0;                            // warm-up steps made
  int64_t round_ = 0;                            // steps since the last average
  double weight_ = 0;                            // of this rank, summed over this round
  bool weighted_ = false;                        // begin_step() was called in this round
  bool idle_ = false;                            // this rank has weight 0 in this step
  bool finished_ = false;                        // no rank had weight in the last round
};

}  // namespace troika::parallel
