// Replicas that learn by themselves for a while, and then meet: local SGD and its relatives, for
// links too slow to carry gradients in every step.
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
  int64_t period = 1;  // steps each rank makes by itself between two meetings
  // Gradients are averaged in this many steps first, as DataParallel does: post-local SGD (Lin et
  // al., ICLR 2020, arXiv 1808.07217, section 3).
  int64_t warmup_steps = 0;
  // None: parameters become their mean over the ranks: local SGD (Stich, ICLR 2019, arXiv
  // 1805.09767, algorithm 1). Else an optimizer steps from where the ranks last met, with the mean
  // of the ways they went since, negated, for its gradient; diloco_outer() makes that DiLoCo.
  std::optional<optim::OptimizerOptions> outer = {};
  // Options of the warm-up; copy_state holds also without one.
  DataParallelOptions synchronous = {};
};

// DiLoCo's outer optimizer, SGD with Nesterov's momentum (Douillard et al. 2023, arXiv 2311.08105,
// algorithm 1 and section 3). Its period is 500, and its inner optimizer AdamW.
optim::OptimizerOptions diloco_outer(double lr = 0.7, double momentum = 0.9);

// After the warm-up, step() is the optimizer's on this rank's gradient alone, and ranks meet after
// each `period` steps and in agree(), which so ends a round of steps early. After a meeting all
// ranks hold the same bits. Parameters that require a gradient meet as the options say. Buffers of
// floating types become their mean over the ranks too, since statistics of one rank's data would
// not be those of the averaged model; of others, such as counters, all get rank 0's. States of the
// optimizer stay each rank's own. Only meetings move data, as many bytes as one averaging of
// gradients does.
//
// With begin_step(), means are weighted by each rank's weights, summed over the round. A rank
// without weight makes no step of its own; that none has any is seen at the end of a round.
//
// With period 1 and plain SGD a step is DataParallel's up to rounding, buffers aside; on one rank,
// without outer optimizer, it is to the bit that of the optimizer alone.
//
// Parameters must be what optim::FlatParameters takes. The set of parameters that require a
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
  // Outside of the warm-up, this rank's own, whose norm clip_grad_norm() bounds.
  std::vector<at::Tensor> gradients() const override;
  void step_by(const std::function<void()>& update) override;
  void agree() override;
  // "steps" of the warm-up and of the "round", this rank's "weight" in it where begin_step() was
  // called, "anchor.<parameter>" and "outer.*" where there is an outer optimizer, and during the
  // warm-up DataParallel's state as "synchronous.*".
  optim::NamedTensors state() const override;
  void load_state(const optim::NamedTensors& state) override;
  void continue_step() override;
  bool set_syncing(bool syncing) override;

 private:
  void make_anchors();
  void end_warmup();
  bool meet();
  void meet_parameters(double factor);
  void meet_buffers(double factor);

  torch::nn::Module& module_;
  comm::Group group_;
  const LocalStepsOptions options_;
  std::unique_ptr<DataParallel> synchronous_;    // during the warm-up
  std::vector<optim::Parameter> parameters_;     // that require a gradient
  std::vector<at::Tensor> anchors_;              // with outer: the parameters as the ranks last met
  std::unique_ptr<optim::FlatOptimizer> outer_;  // of the anchors
  int64_t steps_ = 0;                            // of the warm-up
  int64_t round_ = 0;                            // since the ranks last met
  double weight_ = 0;                            // of this rank, in this round
  bool weighted_ = false;                        // begin_step() was called in this round
  bool idle_ = false;                            // this step has no weight here
  bool finished_ = false;                        // no rank had weight in the last round
};

}  // namespace troika::parallel
