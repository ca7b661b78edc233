#include "troika/train/callbacks/throughput.h"

#include "troika/base/log.h"
#include "troika/compat/torch.h"
#include "troika/nn/precision.h"
#include "troika/train/callbacks/peak.h"
#include "troika/train/fit_context.h"

namespace troika::train {

namespace {

at::Device device_of(Task& task) {
  const auto parameters = task.module().parameters();
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front().device();
}

}  // namespace

void Throughput::on_train_start(FitContext& context) {
  since_ = context.at.train_seconds;
  passes_ = 0;
  is_counted_ = false;
  peak_ = options_.available_flops;
  if (peak_ > 0 || context.task.replicas() > 1) return;
  context.group.barrier({.label = "measurement of the peak"});
  const auto type = nn::parse_precision(context.options.trainer.precision).compute;
  const Peak peak = peak_of(type, device_of(context.task));
  peak_ = peak.flops;
  if (context.group.rank() == 0) {
    log::info("throughput: {:.4g} available FLOPs a second a process ({})", peak.flops,
              peak.source);
  }
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
  const bool has_tokens = batch.targets.defined() && batch.targets.dim() > 1;
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
