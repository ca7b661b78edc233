#include "troika/parallel/pipeline/asynchronous_passes.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"

namespace troika::parallel {

using layout::Action;
using layout::ActionKind;

namespace {

std::vector<at::Tensor> trained(const OwnStages& own) {
  std::vector<at::Tensor> result;
  own.for_each_part([&](StagePart& part) {
    for (const auto& [name, tensor] : nn::trained_parameters(*part.module))
      result.push_back(tensor);
  });
  return result;
}

// As in messages of a schedule: -1 for the neighbouring stage.
int peer(int stage, int other) {
  return std::abs(stage - other) == 1 ? -1 : other;
}

}  // namespace

AsynchronousPasses::AsynchronousPasses(const Parts& parts)
    : parts_(parts),
      stage_(parts.own.all().front()->index),
      versions_(trained(parts.own), parts.order.weights != layout::StageWeights::unstashed) {}

int64_t AsynchronousPasses::in_step(int64_t left) const {
  return std::min(left, parts_.order.micro_batches);
}

int64_t AsynchronousPasses::reach(int64_t count, int64_t left) const {
  const int64_t ahead = parts_.order.own_warm_up() + (parts_.order.steps_after_forward() ? 1 : 0);
  const int64_t begun = std::min(own_before(first_ + left), own_before(first_ + count) + ahead);
  return std::max<int64_t>(count, micro_batch(begun - 1) + 1 - first_);
}

std::vector<at::Tensor> AsynchronousPasses::advance(int64_t left) {
  const int64_t end_of_step = first_ + in_step(left);
  const int64_t total = own_before(first_ + left), end = own_before(end_of_step);
  TROIKA_CHECK(begun_ <= total && left > 0, "a drain comes after the micro-batches in flight");
  auto losses = std::exchange(next_losses_, {});
  parts_.own.share(first_, end_of_step);
  while (done_ < end) {
    for (; begun_ < forwards_before(done_, total); ++begun_) {
      if (auto loss = forward(micro_batch(begun_)); loss.defined()) losses.push_back(loss);
    }
    backward(micro_batch(done_), done_ + 1 == end);
    ++done_;
  }
  // A later pass may wait for the next step of this stage's other replicas, which wait for the
  // averages of this one.
  const bool is_early = begun_ < forwards_before(done_, total) &&
                        micro_batch(begun_) <= end_of_step + parts_.order.warm_up;
  if (parts_.order.steps_after_forward() && is_early) {
    if (auto loss = forward(micro_batch(begun_)); loss.defined()) next_losses_.push_back(loss);
    ++begun_;
  }
  parts_.own.finish(stage_);
  scale_gradients();
  first_ = end_of_step;
  drains_ = in_step(left) == left;
  return losses;
}

int64_t AsynchronousPasses::forwards_before(int64_t own, int64_t total) const {
  return std::min(total, own + 1 + parts_.order.own_warm_up());
}

void AsynchronousPasses::scale_gradients() {
  if (parts_.gradient_factor == 1) return;
  const at::NoGradGuard no_grad;
  parts_.own.for_each_part([&](StagePart& part) {
    for (const auto& gradient : part.exchange->gradients()) gradient.mul_(parts_.gradient_factor);
  });
}

at::Tensor AsynchronousPasses::forward(int micro_batch) {
  const WeightVersions::Using version(versions_, parts_.order.version(micro_batch));
  at::Tensor loss;
  {
    const DeferredBatchNorm::Counting counting(parts_.batch_norms);
    loss = run_->train_forward({ActionKind::forward, stage_, micro_batch});
  }
  most_active_ = std::max(most_active_, parts_.own.active());
  // Running statistics have one version: every micro-batch updates them.
  parts_.batch_norms.update();
  for (int to = stage_ + 1; to < static_cast<int>(parts_.stages.size()); ++to) {
    run_->send({ActionKind::send_activation, stage_, micro_batch, peer(stage_, to)});
  }
  return loss;
}

void AsynchronousPasses::backward(int micro_batch, bool completes) {
  std::deque<GradientSync::NoSync> no_sync;
  if (!completes) no_sync = parts_.own.accumulate();
  {
    const WeightVersions::Using version(versions_, parts_.order.version(micro_batch));
    run_->backward({ActionKind::backward, stage_, micro_batch}, /*splits=*/false);
  }
  for (int to = stage_ - 1; to >= 0; --to) {
    run_->send({ActionKind::send_gradient, stage_, micro_batch, peer(stage_, to)});
  }
}

void AsynchronousPasses::begin_step() {
  const int64_t oldest = parts_.order.version(micro_batch(done_));
  versions_.drop_before(oldest);
  versions_.begin_next(/*keeps=*/!drains_ && oldest <= versions_.newest());
  most_versions_ = std::max(most_versions_, versions_.kept());
  if (!drains_) return;
  versions_.restart();
  run_.reset();
  first_ = begun_ = done_ = 0;
  drains_ = false;
}

}  // namespace troika::parallel
