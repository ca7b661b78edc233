#include "troika/train/callbacks/throughput.h"

#include <algorithm>

#include "troika/base/clock.h"
#include "troika/compat/torch.h"
#include "troika/nn/precision.h"
#include "troika/train/fit_context.h"

namespace troika::train {

double measured_peak(at::ScalarType type) {
  constexpr int64_t kSize = 1024;
  constexpr double kSeconds = 0.2;
  const at::NoGradGuard no_grad;
  const auto a = at::ones({kSize, kSize}, type), b = at::ones({kSize, kSize}, type);
  auto result = at::mm(a, b);
  double best = 0;
  const Stopwatch all;
  while (best == 0 || all.seconds() < kSeconds) {
    const Stopwatch one;
    at::mm_out(result, a, b);
    best = std::max(best, 2.0 * kSize * kSize * kSize / one.seconds());
  }
  return best;
}

void Throughput::on_train_start(FitContext& context) {
  since_ = context.at.train_seconds;
  passes_ = 0;
  is_counted_ = false;
  peak_ = options_.peak_tflops * 1e12;
  if (peak_ > 0 || context.task.replicas() > 1) return;
  context.group.barrier({.label = "measurement of the peak"});
  peak_ = measured_peak(nn::parse_precision(context.options.trainer.precision).compute);
}

void Throughput::on_train_batch_start(FitContext& context, const data::Batch&) {
  if (!is_counted_ && context.task.replicas() == 1) counter_.emplace();
}

void Throughput::on_train_batch_end(FitContext& context, const data::Batch& batch, double) {
  ++passes_;
  if (is_counted_) return;
  is_counted_ = true;
  const auto flops = counter_ ? static_cast<double>(counter_->flops()) : 0.0;
  counter_.reset();
  const bool has_tokens = batch.targets.dim() > 1;
  const auto sums = at::tensor(
      {flops, has_tokens ? static_cast<double>(batch.targets.numel()) : 0.0, peak_}, at::kDouble);
  context.group.all_reduce(sums, comm::ReduceOp::sum, {.label = "work of a pass"});
  flops_ = sums[0].item<double>();
  tokens_ = sums[1].item<double>();
  all_peaks_ = sums[2].item<double>();
}

void Throughput::on_before_optimizer_step(FitContext& context) {
  if ((context.at.step + 1) % context.options.trainer.log_every_n_steps != 0) return;
  const double seconds = context.at.train_seconds - since_;
  if (passes_ == 0 || seconds <= 0) return;
  const double rate = static_cast<double>(passes_) / seconds;
  const auto log = [&](const std::string& name, double value) {
    context.log->log("throughput/" + name, value);
  };
  log("batches_per_second", rate);
  if (tokens_ > 0) log("tokens_per_second", tokens_ * rate);
  if (flops_ > 0) {
    log("flops_per_second", flops_ * rate);
    log("mfu", flops_ * rate / all_peaks_);
  }
  passes_ = 0;
  since_ = context.at.train_seconds;
}

void Throughput::on_exception(FitContext&, const std::exception&) {
  counter_.reset();
}

}  // namespace troika::train
