// The averaging of gradients over ranks, and its weights.
#pragma once

namespace troika::parallel {

// A step, on every rank:
//
//   module.zero_grad();
//   loss.backward();             // this rank's share of the batch
//   exchange.finish_backward();
//   exchange.clip_grad_norm(1);  // if wanted (ParameterStore)
//   exchange.step(optimizer);    // (ParameterStore)
//
// All ranks make the same calls, from one thread each. Each collective in a call blocks for the
// group's timeout at most. After an error the object must not be used again.
class GradientSync {
 public:
  GradientSync() = default;
  virtual ~GradientSync() = default;
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

  // Starts a step in which ranks may have batches of different sizes, or no data left. Either all
  // ranks call this before each step, or no rank ever calls it:
  //
  //   while (exchange.begin_step(samples = load(batch))) {
  //     module.zero_grad();
  //     if (samples > 0) loss(batch).backward();
  //     exchange.finish_backward();
  //     exchange.step(optimizer);
  //   }
  //
  // `weight` is the weight of this rank's gradient, e.g. the number of samples in the mean that is
  // its loss. A rank with weight 0 needs no backward pass. (With SyncBatchNorm it must run its
  // forward and backward passes on empty batches.) Returns false on all ranks, at the same step,
  // once no rank has weight. Gradients must be zeroed or undefined before the step.
  virtual bool begin_step(double weight) = 0;

  // Blocks until the gradients that the optimizer will apply are ready.
  virtual void finish_backward() = 0;

  // Tells exchanges that keep a part of gradients for later steps how far the step that begins
  // moves parameters per unit of gradients: the learning rate, divided by the loss scale. Called
  // before the first backward pass. Others ignore it.
  virtual void expect_rate(double /*rate*/) {}

  // Called before the first micro-batch of a resumed step: .grad holds the sum of micro-batches
  // that another process computed under no_sync() before a checkpoint. They are part of the step
  // that begins.
  virtual void continue_step() {}

  // While this guard lives, backward passes only add to .grad, and finish_backward() must not be
  // called. For gradient accumulation over k micro-batches, run k - 1 under a guard, one without,
  // then finish_backward(): the step is that of the sum of the k losses.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(GradientSync& sync) : sync_(sync), before_(sync.set_syncing(false)) {}
    ~NoSync() { sync_.set_syncing(before_); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    GradientSync& sync_;
    const bool before_;
  };
  NoSync no_sync() { return NoSync(*this); }

  // Switches synchronisation on or off, for no_sync(). Returns the previous setting.
  virtual bool set_syncing(bool syncing) = 0;
};

}  // namespace troika::parallel
