#include "troika/train/profile/measure_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "troika/base/benchmark_record.h"
#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/memory.h"
#include "troika/compat/deferred_init.h"
#include "troika/compat/gpu.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"
#include "troika/parallel/pipeline/stage_module.h"
#include "troika/train/callbacks/peak.h"
#include "troika/train/engine/block_times.h"
#include "troika/train/engine/blocks_apart.h"
#include "troika/train/memory/batches.h"
#include "troika/train/options/limits.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/profile/context_cuts.h"
#include "troika/train/profile/counted_blocks.h"
#include "troika/train/profile/like_device.h"
#include "troika/train/profile/link_times.h"
#include "troika/train/profile/optimizer_times.h"
#include "troika/train/profile/other_memory.h"
#include "troika/train/profile/rank_means.h"
#include "troika/train/profile/robust_spread.h"
#include "troika/train/profile/tensor_cuts.h"
#include "troika/train/task/task.h"
#include "troika/train/tuning/tuning.h"

namespace troika::train {

namespace {

// Runs rounds with whole and with split backward passes, and after memory that an optimizer could
// have used, in turn. Returns PassesInStep::first_micro_batch_factor.
double run_rounds(BlockTimes& times, at::Device device, const comm::Group& group, double seconds) {
  OtherMemory others(device);
  std::vector<double> first, later;
  const auto run = [&](Round round) {
    group.barrier({.label = "rounds of a profile"});
    return times.run(round);
  };
  const auto round = [&] {
    later.push_back(run(Round::whole));
    run(Round::split);
    others.fill_caches();
    first.push_back(run(Round::extra));
  };
  round();
  times.forget();
  first.clear();
  later.clear();
  repeat(group, seconds, round);
  const auto mean = [&](const std::vector<double>& times_of_rounds) {
    return mean_over_ranks(robust_spread(times_of_rounds).mean, group);
  };
  return device.is_cpu() ? std::max(1.0, mean(first) / mean(later)) : 1;
}

int64_t count_gradients(Task& task) {
  int64_t gradients = 0;
  for (const auto& [name, tensor] : nn::trained_parameters(task.module())) {
    gradients += tensor.numel();
  }
  return gradients;
}

// Puts the times into the blocks.
void take_times(std::vector<layout::ProfiledBlock>& blocks,
                const std::vector<BlockSeconds>& seconds, const comm::Group& group) {
  const auto numbers = at::empty({static_cast<int64_t>(blocks.size()), 5}, at::kDouble);
  auto rows = numbers.accessor<double, 2>();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto& own = seconds[i];
    std::vector<double> sums(own.forward.size());
    std::ranges::transform(own.forward, own.backward, sums.begin(), std::plus());
    auto row = rows[static_cast<int64_t>(i)];
    row[0] = robust_spread(own.forward).mean;
    row[1] = robust_spread(own.backward).mean;
    row[2] = robust_spread(own.backward_input).mean;
    row[3] = robust_spread(own.backward_weight).mean;
    const auto all = robust_spread(sums);
    row[4] = all.deviation / std::max(all.mean, 1e-12);
  }
  average_over_ranks(numbers, group);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto row = rows[static_cast<int64_t>(i)];
    // Both parts of a split pass together take a little longer than a whole pass, which most
    // schedules run.
    const double parts = row[2] + row[3];
    blocks[i].forward = row[0];
    blocks[i].backward_input = parts > 0 ? row[1] * row[2] / parts : row[1];
    blocks[i].backward_weight = row[1] - blocks[i].backward_input;
    blocks[i].spread = row[4];
  }
}

// Returns the pairs of blocks of which the second reads the output of the first; empty for a chain.
std::vector<std::pair<size_t, size_t>> edges_of(const nn::Model& model) {
  const auto& wiring = model.wiring();
  std::set<std::pair<size_t, size_t>> edges;
  bool is_chain = true;
  for (size_t to = 0; to < model.blocks().size(); ++to) {
    for (const auto slot : wiring.taken_by(to)) {
      const auto from = wiring.giver_before(slot, to);
      if (from) edges.emplace(*from, to);
      is_chain &= from ? *from + 1 == to : to == 0;
    }
  }
  if (is_chain) return {};
  return {edges.begin(), edges.end()};
}

void take_optimizer(layout::Profile& profile, const OptimizerTimes& times) {
  if (times.parameter_bytes == 0) return;
  profile.optimizer_factor = times.state_bytes / times.parameter_bytes;
  profile.optimizer_bytes_per_second = times.parameter_bytes / std::max(times.seconds, 1e-9);
}

TrainOptions tuned(TrainOptions options, const data::Dataset& dataset, const comm::Group& group,
                   bool is_whole) {
  const auto folder = run_folder(options);
  options.model = tuned_model(options, dataset, group, folder);
  if (is_whole) {
    options.trainer.memory_format = tuned_memory_format(options, dataset, group, folder);
  }
  options.trainer.weight_layout = tuned_weight_layout(options, dataset, group, folder);
  return options;
}

// Passes and optimizer steps have been measured for a profile; these are the results.
struct Measured {
  std::vector<BlockProducts> products = {};  // with ProfileOptions::like
  OptimizerTimes optimizer = {};
  double overlap = 1, first_factor = 1;
};

class Measurement {
 public:
  Measurement(const TrainOptions& options, const Placement& placement, const comm::Group& group,
              const ProfileOptions& asked, const data::Batch& batch)
      : options_(options), placement_(placement), group_(group), asked_(asked), batch_(batch) {}

  Measured whole(Task& task, std::vector<layout::ProfiledBlock>& blocks) const {
    Measured result;
    {
      BlockTimes times(task, placement_, batch_, group_);
      result.first_factor = run_rounds(times, placement_.device, group_, asked_.seconds);
      take_times(blocks, times.seconds(), group_);
      result.overlap = overlap(task, [&] { times.run(Round::extra); });
      if (!asked_.like.empty()) result.products = times.count_products();
    }
    result.optimizer = optimizer(nn::trained_parameters(task.module()));
    return result;
  }

  Measured by_blocks(Task& task, const compat::DeferredInit& values,
                     std::vector<layout::ProfiledBlock>& blocks) const {
    const auto largest =
        static_cast<size_t>(std::ranges::max_element(blocks, {}, bytes_by_itself) - blocks.begin());
    Measured result;
    BlocksApart times(task, values, placement_, batch_);
    OtherMemory others(placement_.device);
    for (size_t i = 0; i < blocks.size(); ++i) {
      times.enter();
      const auto run = [&](Round round) {
        others.fill_caches();
        group_.barrier({.label = "rounds of a profile"});
        times.run(round);
      };
      repeat(group_, asked_.seconds / static_cast<double>(blocks.size()), [&] {
        run(Round::whole);
        run(Round::split);
      });
      if (i == largest) {
        result.overlap = overlap(task, [&] { times.run(Round::extra); });
        result.optimizer = optimizer(trained_of(task, i));
      }
      if (!asked_.like.empty()) result.products.push_back(times.count_products());
      times.leave();
    }
    take_times(blocks, times.seconds(), group_);
    return result;
  }

 private:
  static state::StateDict trained_of(Task& task, size_t block) {
    auto trained = nn::trained_parameters(task.module());
    const auto names = parallel::tensors_of_blocks(task.blocks(), block, block + 1);
    std::erase_if(trained, [&](const auto& entry) { return !names.contains(entry.first); });
    return trained;
  }
  double overlap(Task& task, const std::function<void()>& compute) const {
    return measure_overlap(group_, placement_.device, count_gradients(task), asked_.seconds,
                           compute);
  }
  OptimizerTimes optimizer(const state::StateDict& trained) const {
    return measure_optimizer(trained, options_.optimizer, placement_, group_);
  }

  const TrainOptions& options_;
  const Placement& placement_;
  const comm::Group& group_;
  const ProfileOptions& asked_;
  const data::Batch& batch_;
};

}  // namespace

int64_t profiled_batch(const TrainOptions& options, const comm::Group& group) {
  const int replicas = resolve_plan(options, cluster_of(group)).mesh.sample_shares();
  return (global_batch(options, replicas) + replicas - 1) / replicas;
}

layout::Profile measure_profile(const TrainOptions& configured, const data::Dataset& dataset,
                                const comm::Group& group, const ProfileOptions& asked) {
  const bool is_whole = !asked.block_by_block;
  const auto options = tuned(configured, dataset, group, is_whole);
  const int64_t samples =
      asked.micro_batch > 0 ? asked.micro_batch : profiled_batch(options, group);
  compat::count_tensor_memory();
  const auto placement = Placement::of(options, group);
  PublishedRates like;
  if (!asked.like.empty()) like = published_rates(asked.like, placement.precision.compute);
  if (placement.device.is_cpu()) compat::keep_freed_memory();
  const CpuBinding binding(is_whole ? tuned_cpu_bind(options, dataset, group)
                                    : asked_cpu_bind(options, group));
  compat::DeferredInit values;
  std::optional<Task> made;
  const auto make = [&] { made.emplace(nn::make_model(options.model)); };
  if (is_whole) {
    make();
    placement.place(made->module());
  } else {
    values.record(make);
    placement.place(made->module(), values);
    TROIKA_CHECK(values.is_complete(), "models of make_model() are made without reading values");
  }
  Task& task = *made;
  const auto batch = placement.place(profiled_samples(dataset, samples));
  layout::Profile profile{.model = {options.model.name, nn::parameter_count(task.module())},
                          .precision = placement.precision.name,
                          .micro_batch = static_cast<double>(samples)};
  const auto gpu = compat::gpu_name(placement.device);
  profile.device = gpu.empty() ? cpu_model() : gpu;
  profile.in_step.batches = batches_of(options, profiled_samples(dataset, 1), placement, samples);
  profile.blocks = counted_blocks(options, dataset, placement.precision, samples, group);
  add_tensor_cuts(profile.blocks, options, dataset, placement.precision, samples, group);
  add_context_cuts(profile.blocks, options, configured.model.attn_implementation, dataset,
                   placement.precision, samples, group);
  profile.edges = edges_of(task.blocks());
  const Measurement measurement(options, placement, group, asked, batch);
  const auto measured = is_whole ? measurement.whole(task, profile.blocks)
                                 : measurement.by_blocks(task, values, profile.blocks);
  take_optimizer(profile, measured.optimizer);
  const auto rates = at::tensor({peak_of(placement.precision.compute, placement.device).flops,
                                 measured_bandwidth(placement.device)},
                                at::kDouble);
  average_over_ranks(rates, group);
  profile.device_flops = rates[0].item<double>();
  const int64_t gradients = count_gradients(task);
  const auto links = measure_link_times(group, placement.device, gradients, asked.seconds / 4);
  profile.group = links.inside;
  profile.network = links.between;
  if (asked.like.empty()) {
    profile.gather_bytes_per_second = measure_gathers(group, placement.device, gradients, links);
    profile.in_step.overlap = measured.overlap;
    profile.in_step.first_micro_batch_factor = measured.first_factor;
  } else {
    // Devices with published rates communicate beside computing.
    profile.device = asked.like;
    scale_to(profile, measured.products, {profile.device_flops, rates[1].item<double>()},
             {like.flops, like.bandwidth});
  }
  return profile;
}

}  // namespace troika::train
