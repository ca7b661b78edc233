#include "troika/train/profile/offload_times.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "troika/base/clock.h"
#include "troika/compat/torch.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/offload.h"
#include "troika/nn/zoo.h"
#include "troika/train/engine/placement.h"
#include "troika/train/profile/measure_profile.h"
#include "troika/train/profile/optimizer_times.h"
#include "troika/train/profile/rank_means.h"
#include "troika/train/profile/robust_spread.h"
#include "troika/train/task/task.h"

namespace troika::train {

namespace {

constexpr const char* kHost = "host";
constexpr int kRounds = 5;

// Seconds of a micro-batch, forward and backward.
double pass_seconds(Task& task, const Placement& placement, const data::Batch& batch,
                    const comm::Group& group) {
  std::vector<double> seconds;
  for (int i = 0; i <= kRounds; ++i) {
    group.barrier({.label = "times of offload"});
    const Stopwatch watch;
    at::Tensor loss;
    {
      const nn::Autocast autocast(placement.precision, placement.device.type());
      const nn::KeyedDraws draws(nn::some_samples(batch.size()));
      loss = task.training_step(batch);
    }
    loss.backward();
    if (!placement.device.is_cpu()) loss.item<double>();
    if (i > 0) seconds.push_back(watch.seconds());  // the first one makes the files
    task.module().zero_grad(/*set_to_none=*/true);
  }
  return mean_over_ranks(robust_spread(seconds).mean, group);
}

void make_folder(const std::string& target) {
  if (!target.empty() && target != kHost) std::filesystem::create_directories(target);
}

}  // namespace

OffloadTargets offload_targets(const TrainOptions& options, const comm::Group& group) {
  const auto folder = std::filesystem::absolute(run_folder(options)).string();
  OffloadTargets targets{options.offload.activations, options.optimizer.offload};
  if (targets.activations.empty()) {
    targets.activations = Placement::of(options, group).device.is_cpu() ? folder : kHost;
  }
  if (options.optimizer.name == "adamw_8bit") {
    targets.optimizer.clear();
  } else if (targets.optimizer.empty()) {
    targets.optimizer = folder;
  }
  return targets;
}

double offloaded_pass_seconds(const TrainOptions& options, const data::Dataset& dataset,
                              const comm::Group& group, const OffloadTargets& targets,
                              int64_t micro_batch) {
  make_folder(targets.activations);
  const auto placement = Placement::of(options, group);
  Task task(nn::make_model(options.model));
  placement.place(task.module());
  task.module().train();
  const auto batch = placement.place(profiled_samples(dataset, micro_batch));
  const double plain = pass_seconds(task, placement, batch, group);
  std::shared_ptr<compat::SavedTensorHooks> hooks;
  if (targets.activations == kHost) {
    hooks = std::make_shared<nn::HostOffload>();
  } else {
    hooks = std::make_shared<nn::ActivationOffload>(targets.activations);
  }
  const auto offloaded = nn::offload(dynamic_cast<nn::Model&>(task.module()), std::move(hooks));
  return std::max(0.0, pass_seconds(task, placement, batch, group) - plain);
}

double offloaded_optimizer_seconds(TrainOptions options, const comm::Group& group,
                                   const OffloadTargets& targets) {
  if (targets.optimizer.empty()) return 0;
  make_folder(targets.optimizer);
  const auto placement = Placement::of(options, group);
  Task task(nn::make_model(options.model));
  placement.place(task.module());
  options.optimizer.offload.clear();
  const auto trained = nn::trained_parameters(task.module());
  const double in_memory = measure_optimizer(trained, options.optimizer, placement, group).seconds;
  options.optimizer.offload = targets.optimizer;
  const double in_files = measure_optimizer(trained, options.optimizer, placement, group).seconds;
  return std::max(0.0, in_files - in_memory);
}

}  // namespace troika::train
