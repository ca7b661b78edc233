// Measures the speed of a run and its share of the devices' peak: Lightning's ThroughputMonitor.
#pragma once

#include <memory>

#include "troika/train/options/options.h"
#include "troika/train/run/callback.h"

namespace troika::compat {
class FlopCounter;
}  // namespace troika::compat

namespace troika::train {

// Logs with every row of steps, relative to the time spent in micro-batches since the previous row:
// `throughput/batches_per_second` (global micro-batches), `/tokens_per_second` if targets are
// sequences, `/flops_per_second` and `/mfu`. FLOPs are those that compat::FlopCounter counts in the
// forward and backward pass of the run's first micro-batch, summed over ranks, without
// recomputation (model FLOPs utilization: Chowdhery et al. 2022, arXiv 2204.02311, appendix B).
//
// The peak of a process is throughput.available_flops or peak_of() its device; an unpublished peak
// is measured before training, on all ranks at the same time. Memory bandwidth is measured too, and
// the run's summary gets the Roofline. Strategy dp has no FLOPs and no roofline, because its
// threads are not observed.
class Throughput : public Callback {
 public:
  explicit Throughput(const ThroughputOptions& options) : options_(options) {}

  std::string name() const override { return "throughput"; }
  void on_train_start(FitContext& context) override;
  void on_train_batch_start(FitContext& context, const data::Batch& batch) override;
  void on_before_optimizer_step(FitContext& context) override;
  void on_train_batch_end(FitContext& context, const data::Batch& batch,
                          const at::Tensor& loss) override;
  void on_exception(FitContext& context, const std::exception& problem) override;

 private:
  // Called by all ranks after the first micro-batch.
  void sum_up_work(FitContext& context, const data::Batch& batch);

  const ThroughputOptions options_;
  double peak_ = 0;       // this rank's FLOPs per second
  double bandwidth_ = 0;  // bytes per second
  std::shared_ptr<compat::FlopCounter> counter_;
  // Totals of a micro-batch over all ranks; 0 without FLOPs or sequences.
  bool is_counted_ = false;
  // The micro-batches that are counted together: in a pipeline, those of a step; two, if their
  // forward passes take turns.
  int64_t started_ = 0;
  int64_t ended_ = 0;
  double flops_ = 0;
  double tokens_ = 0;
  double all_peaks_ = 0;
  int64_t micro_batches_ = 0;  // micro-batches since the latest row
  double since_ = 0;           // train_seconds at the latest row
};

}  // namespace troika::train
