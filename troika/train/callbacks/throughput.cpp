#include "troika/train/callbacks/throughput.h"

#include <algorithm>
#include <array>

#include "troika/base/log.h"
#include "troika/compat/flop_counter.h"
#include "troika/compat/torch.h"
#include "troika/nn/precision.h"
#include "troika/train/callbacks/peak.h"
#include "troika/train/engine/optimization.h"
#include "troika/train/engine/pipeline_plan.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {

namespace {

at::Device device_of(Task& task) {
  const auto parameters = task.module().parameters();
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front().device();
}

// A step reads gradients, and reads and writes parameters and states.
double bytes_of_step(const Optimization& optimization) {
  size_t bytes = 0;
  for (const auto& parameter : optimization.parameters()) bytes += 3 * parameter.tensor.nbytes();
  for (const auto& [name, state] : optimization.state()) bytes += 2 * state.nbytes();
  return static_cast<double>(bytes);
}

}  // namespace

void Throughput::on_train_start(FitContext& context) {
  since_ = context.at.train_seconds;
  micro_batches_ = 0;
  is_counted_ = false;
  started_ = 0;
  context.roofline.reset();
  peak_ = options_.available_flops;
  if (context.task.replicas() > 1) return;
  context.group.barrier({.label = "measurement of the peak"});
  const auto device = device_of(context.task);
  bandwidth_ = measured_bandwidth(device);
  if (peak_ > 0) return;
  const auto type = nn::parse_precision(context.options.trainer.precision).compute;
  const Peak peak = peak_of(type, device);
  peak_ = peak.flops;
  if (context.group.rank() == 0) {
    log::info("throughput: {:.4g} available FLOPs a second a process ({})", peak.flops,
              peak.source);
  }
}

void Throughput::on_train_batch_start(FitContext& context, const data::Batch&) {
  if (is_counted_ || context.task.replicas() > 1) return;
  // An engine may take several micro-batches before the first one ends.
  if (!counter_) counter_ = std::make_shared<compat::FlopCounter>();
  ++started_;
}

void Throughput::on_train_batch_end(FitContext& context, const data::Batch& batch,
                                    const at::Tensor&) {
  ++micro_batches_;
  if (is_counted_ || ++ended_ < started_) return;
  is_counted_ = true;
  sum_up_work(context, batch);
  counter_.reset();
}

void Throughput::sum_up_work(FitContext& context, const data::Batch& batch) {
  constexpr std::array kPhases{"forward", "backward", "optimizer"};
  const auto& mesh = context.groups.mesh();
  const auto place = mesh.coordinates(context.group.rank());
  // All ranks of a pipeline, a tensor or a context axis have the same samples.
  const bool has_own_samples =
      place[layout::Axis::pipeline] == 0 && place[layout::Axis::tensor] == 0 &&
      place[layout::Axis::context] == 0 && place[layout::Axis::data] < mesh.sample_shares();
  const bool has_tokens = has_own_samples && batch.targets.defined() && batch.targets.dim() > 1;
  std::array<double, 4 + 2 * kPhases.size()> sums{
      counter_ ? static_cast<double>(counter_->flops()) : 0.0,
      has_tokens ? static_cast<double>(batch.targets.numel()) : 0.0, peak_, bandwidth_};
  std::array<double, kPhases.size()> bounds{};
  const auto add = [&](size_t phase, double flops, double bytes) {
    sums[4 + 2 * phase] += flops;
    sums[5 + 2 * phase] += bytes;
    bounds[phase] += 1e3 * std::max(flops / peak_, bytes / bandwidth_);
  };
  if (counter_) {
    // Forward passes that take turns are timed together, backward passes one by one.
    const double backwards = static_cast<double>(std::max<int64_t>(1, started_));
    for (const auto& work : counter_->works()) {
      const double share = work.is_backward ? 1 / backwards : 1;
      add(work.is_backward ? 1 : 0, share * static_cast<double>(work.flops),
          share * static_cast<double>(work.bytes));
    }
    add(2, 0, bytes_of_step(*context.training.optimization));
  }
  const auto all_sums =
      at::from_blob(sums.data(), {static_cast<int64_t>(sums.size())}, at::kDouble);
  const auto all_bounds =
      at::from_blob(bounds.data(), {static_cast<int64_t>(bounds.size())}, at::kDouble);
  context.group.all_reduce(all_sums, comm::ReduceOp::sum, {.label = "work of a micro-batch"});
  context.group.all_reduce(all_bounds, comm::ReduceOp::max, {.label = "work of a micro-batch"});
  flops_ = sums[0] / static_cast<double>(std::max<int64_t>(1, started_));
  tokens_ = sums[1];
  all_peaks_ = sums[2];
  // The phases of a pipeline's step are not timed one by one.
  if (!counter_ || is_pipeline(*context.training.plan)) return;
  context.roofline = {.flops_per_second = sums[2], .bytes_per_second = sums[3], .work = {}};
  for (size_t p = 0; p < kPhases.size(); ++p) {
    context.roofline->work.push_back({kPhases[p], sums[4 + 2 * p], sums[5 + 2 * p], bounds[p]});
  }
}

void Throughput::on_before_optimizer_step(FitContext& context) {
  if ((context.at.step + 1) % context.options.trainer.log_every_n_steps != 0) return;
  const double seconds = context.at.train_seconds - since_;
  if (micro_batches_ == 0 || seconds <= 0) return;
  const double rate = static_cast<double>(micro_batches_) / seconds;
  const auto log = [&](const std::string& name, double value) {
    context.log->log("throughput/" + name, value);
  };
  log("batches_per_second", rate);
  if (tokens_ > 0) log("tokens_per_second", tokens_ * rate);
  if (flops_ > 0) {
    log("flops_per_second", flops_ * rate);
    log("mfu", flops_ * rate / all_peaks_);
  }
  micro_batches_ = 0;
  since_ = context.at.train_seconds;
}

void Throughput::on_exception(FitContext&, const std::exception&) {
  counter_.reset();
}

}  // namespace troika::train
