// How fast a run is, and what share of its processors' peak that is: Lightning's ThroughputMonitor.
#pragma once

#include <optional>

#include "troika/compat/flop_counter.h"
#include "troika/train/options/options.h"
#include "troika/train/run/callback.h"

namespace troika::train {

// Logs with every row of steps, of the time since the row before that was spent in passes:
// `throughput/batches_per_second` (global ones), `/tokens_per_second` where targets are sequences,
// `/flops_per_second` and `/mfu`. FLOPs are those of the products of a forward and backward pass,
// counted in the run's first pass and added up over ranks; what is recomputed does not count (model
// FLOPs utilisation: Chowdhery et al. 2022, arXiv 2204.02311, appendix B). The peak of a process is
// throughput.available_flops, or peak_of() its device, which all ranks measure at the same time
// before training where it is not published. They measure the bandwidth of memory, too, and the
// run's summary gets the Roofline. Not for strategy dp, whose threads are not watched: no FLOPs and
// no roofline then.
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
  // Called by all ranks after the first pass.
  void sum_up_work(FitContext& context, const data::Batch& batch);

  const ThroughputOptions options_;
  double peak_ = 0;       // FLOPs a second, of this rank
  double bandwidth_ = 0;  // bytes a second
  std::optional<compat::FlopCounter> counter_;
  // Totals of a pass over all ranks; 0 where there are no sequences or FLOPs.
  bool is_counted_ = false;
  double flops_ = 0;
  double tokens_ = 0;
  double all_peaks_ = 0;
  int64_t passes_ = 0;  // done since the latest row
  double since_ = 0;    // seconds in passes at the latest row
};

}  // namespace troika::train
