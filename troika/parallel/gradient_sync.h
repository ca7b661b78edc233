// When gradients are averaged over ranks, and with which weights.
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
// All ranks make the same calls, from one thread each. A call blocks for the group's time-out at
// most for each collective. After an error the object must not be used again.
class GradientSync {
 public:
  GradientSync() = default;
  virtual ~GradientSync() = default;
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

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

  // Blocks until the gradients that the optimizer is to apply are there.
  virtual void finish_backward() = 0;

  // Before the first pass: .grad holds the sum of passes that another process made under no_sync(),
  // before a checkpoint. They are part of the step that begins.
  virtual void continue_step() {}

  // While it lives, backward passes only add to .grad, and finish_backward() must not be called.
  // k - 1 passes under a guard, one without, then finish_backward() make the step of the k passes'
  // summed losses.
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

  // no_sync() sets it to false, and back. Returns the setting before.
  virtual bool set_syncing(bool syncing) = 0;
};

}  // namespace troika::parallel
