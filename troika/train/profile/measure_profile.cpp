#include "troika/train/profile/measure_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "troika/base/benchmark_record.h"
#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/memory.h"
#include "troika/compat/fake_tensors.h"
#include "troika/compat/gpu.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/recompute/block_costs.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"
#include "troika/train/callbacks/peak.h"
#include "troika/train/engine/block_times.h"
#include "troika/train/options/limits.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/profile/block_memory.h"
#include "troika/train/profile/like_device.h"
#include "troika/train/profile/link_times.h"
#include "troika/train/profile/optimizer_times.h"
#include "troika/train/profile/rank_means.h"
#include "troika/train/profile/robust_spread.h"
#include "troika/train/task/task.h"
#include "troika/train/tuning/tuning.h"

namespace troika::train {

namespace {

constexpr size_t kLeastRounds = 5, kMostRounds = 300;

// The decision of rank 0.
bool decided(const comm::Group& group, bool own) {
  const auto flag = at::full({1}, own ? 1 : 0, at::kLong);
  group.broadcast(flag, 0, {.label = "rounds of a profile"}).wait();
  return flag.item<int64_t>() != 0;
}

// Runs rounds with whole and with split backward passes in turn.
void run_rounds(BlockTimes& times, const comm::Group& group, double seconds) {
  const auto round = [&] {
    for (const bool splits : {false, true}) {
      group.barrier({.label = "rounds of a profile"});
      times.run(splits);
    }
  };
  round();
  times.forget();
  const Stopwatch watch;
  size_t rounds = 0;
  do {
    round();
    ++rounds;
  } while (
      decided(group, rounds < kMostRounds && (rounds < kLeastRounds || watch.seconds() < seconds)));
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

// The bytes of each block, from the model on tensors without memory: output, saved, workspace and
// parameters, four numbers each.
std::vector<double> count_bytes(const TrainOptions& options, const data::Dataset& dataset,
                                const nn::NumericPrecision& precision, int64_t samples) {
  constexpr int64_t kSmaller = 2, kLarger = 4;  // as MemoryPredictor
  const int64_t larger = std::min(kLarger, samples), smaller = std::min(kSmaller, (larger + 1) / 2);
  const auto small = profiled_samples(dataset, smaller), large = profiled_samples(dataset, larger);
  const auto whole = profiled_samples(dataset, samples);
  const compat::FakeTensorGuard no_memory;
  Task task(nn::make_model(options.model));
  const Placement placement{.precision = precision};
  placement.place(task.module());
  const auto& blocks = task.blocks().blocks();
  const PassMemory pass(task, precision, small, large);
  const auto memory = memory_of_blocks(pass.parts(samples), blocks.size());
  const auto placed = placement.place(whole);
  const nn::Autocast autocast(precision, at::kCPU);
  const nn::KeyedDraws draws(nn::some_samples(samples));
  const auto costs =
      nn::estimate_blocks(task.blocks(), task.block_inputs(placed), task.output_loss(placed));
  std::set<std::string> trained;
  for (const auto& [name, tensor] : nn::trained_parameters(task.module())) trained.insert(name);
  std::vector<double> numbers;
  for (size_t i = 0; i < blocks.size(); ++i) {
    double parameters = 0;
    for (const auto& [name, tensor] : task.blocks().owned_state(blocks[i])) {
      if (trained.contains(name)) parameters += static_cast<double>(tensor.nbytes());
    }
    numbers.insert(numbers.end(), {static_cast<double>(costs[i].output_bytes), memory[i].saved,
                                   memory[i].workspace, parameters});
  }
  return numbers;
}

// Counts on rank 0 alone: ranks may be threads of one process, which count the same bytes.
void take_bytes(std::vector<layout::ProfiledBlock>& blocks, const TrainOptions& options,
                const data::Dataset& dataset, const nn::NumericPrecision& precision,
                int64_t samples, const comm::Group& group) {
  const auto numbers = at::zeros({static_cast<int64_t>(blocks.size()), 4}, at::kDouble);
  group.barrier({.label = "bytes of blocks"});
  if (group.rank() == 0) {
    const auto counted = count_bytes(options, dataset, precision, samples);
    std::ranges::copy(counted, numbers.data_ptr<double>());
  }
  group.broadcast(numbers, 0, {.label = "bytes of blocks"}).wait();
  const auto rows = numbers.accessor<double, 2>();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto row = rows[static_cast<int64_t>(i)];
    blocks[i].output_bytes = row[0];
    blocks[i].saved_bytes = row[1];
    blocks[i].workspace_bytes = row[2];
    blocks[i].parameter_bytes = row[3];
  }
}

void take_optimizer(layout::Profile& profile, const OptimizerTimes& times) {
  if (times.parameter_bytes == 0) return;
  profile.optimizer_factor = times.state_bytes / times.parameter_bytes;
  profile.optimizer_bytes_per_second = times.parameter_bytes / std::max(times.seconds, 1e-9);
}

TrainOptions tuned(TrainOptions options, const data::Dataset& dataset, const comm::Group& group) {
  const auto folder = run_folder(options);
  options.model = tuned_model(options, dataset, group, folder);
  options.trainer.memory_format = tuned_memory_format(options, dataset, group, folder);
  options.trainer.weight_layout = tuned_weight_layout(options, dataset, group, folder);
  return options;
}

}  // namespace

data::Batch profiled_samples(const data::Dataset& dataset, int64_t samples) {
  std::vector<int64_t> indices(static_cast<size_t>(samples));
  for (int64_t i = 0; i < samples; ++i) indices[static_cast<size_t>(i)] = i % dataset.size();
  return dataset.load(indices, {});
}

int64_t profiled_batch(const TrainOptions& options, const comm::Group& group) {
  const int replicas = resolve_plan(options, cluster_of(group)).mesh.sample_shares();
  return (global_batch(options, replicas) + replicas - 1) / replicas;
}

layout::Profile measure_profile(const TrainOptions& configured, const data::Dataset& dataset,
                                const comm::Group& group, const ProfileOptions& asked) {
  const auto options = tuned(configured, dataset, group);
  const int64_t samples =
      asked.micro_batch > 0 ? asked.micro_batch : profiled_batch(options, group);
  compat::count_tensor_memory();
  const auto placement = Placement::of(options, group);
  PublishedRates like;
  if (!asked.like.empty()) like = published_rates(asked.like, placement.precision.compute);
  if (placement.device.is_cpu()) compat::keep_freed_memory();
  const CpuBinding binding(tuned_cpu_bind(options, dataset, group));
  Task task(nn::make_model(options.model));
  placement.place(task.module());
  const auto batch = placement.place(profiled_samples(dataset, samples));
  layout::Profile profile{.model = options.model.name,
                          .precision = placement.precision.name,
                          .micro_batch = static_cast<double>(samples)};
  const auto gpu = compat::gpu_name(placement.device);
  profile.device = gpu.empty() ? cpu_model() : gpu;
  for (const auto& block : task.blocks().blocks()) profile.blocks.push_back({.name = block.name});
  profile.edges = edges_of(task.blocks());
  std::vector<BlockProducts> products;
  int64_t gradients = 0;
  for (const auto& [name, tensor] : nn::trained_parameters(task.module())) {
    gradients += tensor.numel();
  }
  double overlap = 1;
  {
    BlockTimes times(task, placement, batch, group);
    run_rounds(times, group, asked.seconds);
    take_times(profile.blocks, times.seconds(), group);
    overlap =
        measure_overlap(group, placement.device, gradients, [&] { times.run(/*splits=*/false); });
    if (!asked.like.empty()) products = times.count_products();
  }
  take_bytes(profile.blocks, options, dataset, placement.precision, samples, group);
  take_optimizer(profile, measure_optimizer(task, options.optimizer, placement, group));
  const auto rates = at::tensor({peak_of(placement.precision.compute, placement.device).flops,
                                 measured_bandwidth(placement.device)},
                                at::kDouble);
  average_over_ranks(rates, group);
  profile.device_flops = rates[0].item<double>();
  if (!asked.like.empty()) {
    profile.device = asked.like;
    scale_to(profile, products, {profile.device_flops, rates[1].item<double>()},
             {like.flops, like.bandwidth});
  }
  const auto links = measure_link_times(group, placement.device, gradients, asked.seconds / 4);
  profile.group = links.inside;
  profile.network = links.between;
  if (asked.like.empty()) {
    profile.gather_bytes_per_second = measure_gathers(group, placement.device, gradients, links);
  }
  // Devices with published rates communicate beside computing.
  profile.overlap = asked.like.empty() ? overlap : 1;
  return profile;
}

}  // namespace troika::train
