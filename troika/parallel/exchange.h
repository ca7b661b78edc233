// The seam between a training loop and how the ranks' replicas of a module come to agree.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "troika/layout/box.h"
#include "troika/optim/flat_optimizer.h"

namespace torch::nn {
class Module;
}

namespace troika::parallel {

// A step, on every rank:
//
//   module.zero_grad();
//   loss.backward();             // this rank's share of the batch
//   exchange.finish_backward();
//   exchange.clip_grad_norm(1);  // if wanted
//   exchange.step(optimizer);
//
// All ranks make the same calls. Use from one thread; the module must outlive this object, and
// after an error the object must not be used again. What blocks does so at most for the group's
// time-out a collective.
class Exchange {
 public:
  Exchange() = default;
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // The tensors this rank's optimizer steps, of the module that the exchange was made for: all its
  // trained parameters, or the pieces of them that are this rank's to step, under the names of
  // their parameters.
  virtual std::vector<optim::Parameter> parameters(const torch::nn::Module& module) const;
  // Which part of its parameter each of these is, in the same order; empty where they are
  // the parameters.
  virtual std::vector<layout::Box> shards() const { return {}; }
  // Whether `here` is true on any rank, where ranks hold different gradients; else `here`, which is
  // the same on all then. Blocks.
  virtual bool any(bool here) { return here; }
  // For FlatOptimizer::complete_sums_by(): of sums over the elements of each of parameters(), makes
  // those over the elements of the whole parameters. Called by all ranks; blocks.
  virtual void complete_sums(const at::Tensor& /*sums*/) {}
  // Whether only ranks together have the parameters between passes, each what parameters() gives.
  virtual bool shares_parameters() const { return false; }
  // Has the module on every rank take what ranks' parameters() hold, after these were written to:
  // all of it after agree(), else the next pass or agree() gets the rest where ranks share
  // parameters. Outside of a pass, called by all ranks; blocks.
  virtual void spread_parameters() {}

  // For ranks that run out of data at different times, or whose batches differ in size; called by
  // all ranks before each step, or by none:
  //
  //   while (exchange.begin_step(samples = load(batch))) {
  //     module.zero_grad();
  //     if (samples > 0) loss(batch).backward();
  //     exchange.finish_backward();
  //     exchange.step(optimizer);
  //   }
  //
  // `weight` is that of this rank's gradient, e.g. the number of samples its loss is the mean of.
  // With 0 a rank needs no backward pass (but one of a module with SyncBatchNorm must make its
  // passes, with empty batches). Returns false, on all ranks at the same step, once no rank has
  // weight. Gradients must be zeroed or undefined before the step.
  virtual bool begin_step(double weight) = 0;

  // Blocks until .grad holds what step() is to apply.
  virtual void finish_backward() = 0;

  // Scales the gradients, between finish_backward() and step(), so that their norm (2-norm over all
  // elements, made in float64) is at most `max_norm`. Returns the norm before; if it is not finite,
  // gradients stay.
  virtual double clip_grad_norm(double max_norm) = 0;

  // Calls `update`, which steps the optimizer, and does what follows it. May block.
  virtual void step_by(const std::function<void()>& update) = 0;
  // The same with an optimizer of room optim, or of LibTorch.
  template <typename Optimizer>
  void step(Optimizer& optimizer) {
    step_by([&] { optimizer.step(); });
  }

  // Makes parameters and buffers the same bits on all ranks: for validation, checkpoints of the
  // module, and the end of training. Outside of a step; nothing happens where they are the same.
  virtual void agree() = 0;

  // The state of this rank beside the module and the optimizer: for a checkpoint of
  // this rank, outside of a step. Tensors may share memory with this object: save or copy them
  // before the next step.
  virtual optim::NamedTensors state() const = 0;
  // Takes copies, once the module has the parameters that it had when the state was saved. Called
  // by all ranks. Throws Error(usage) naming what does not belong.
  virtual void load_state(const optim::NamedTensors& state) = 0;

  // While it lives, backward passes only add to .grad, and finish_backward() must not be called.
  // k - 1 passes under a guard, one without, then finish_backward() make the step of the k passes'
  // summed losses.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(Exchange& exchange)
        : exchange_(exchange), before_(exchange.set_syncing(false)) {}
    ~NoSync() { exchange_.set_syncing(before_); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    Exchange& exchange_;
    const bool before_;
  };
  NoSync no_sync() { return NoSync(*this); }

  // Before the first pass: .grad holds the sum of passes that another process made under no_sync(),
  // before a checkpoint. They are part of the step that begins.
  virtual void continue_step() {}

  // no_sync() sets it to false, and back. Returns the setting before.
  virtual bool set_syncing(bool syncing) = 0;

 protected:
  // The name in state() of the order of a DataParallel's buckets.
  static constexpr const char* kBucketOrder = "bucket_order";

  // Throws Error(usage): load_state() knows no tensor of this name, or not of this kind.
  [[noreturn]] static void refuse_state(const std::string& name);
};

}  // namespace troika::parallel
