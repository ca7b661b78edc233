#include "troika/train/profile/counted_blocks.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <string>

#include "troika/compat/deferred_init.h"
#include "troika/compat/fake_tensors.h"
#include "troika/compat/torch.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/recompute/block_costs.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"
#include "troika/parallel/pipeline/stages.h"
#include "troika/train/engine/placement.h"
#include "troika/train/memory/pass_memory.h"
#include "troika/train/memory/stage_memory.h"
#include "troika/train/options/limits.h"
#include "troika/train/profile/block_memory.h"
#include "troika/train/task/task.h"

namespace troika::train {

namespace {

// The bytes that are counted of each block, and those of its stage.
constexpr std::array kCounted{
    &layout::ProfiledBlock::output_bytes, &layout::ProfiledBlock::saved_bytes,
    &layout::ProfiledBlock::workspace_bytes, &layout::ProfiledBlock::parameter_bytes};
constexpr std::array kCountedInStage{&layout::BlockInStage::fixed_bytes,
                                     &layout::BlockInStage::borrowed_bytes,
                                     &layout::BlockInStage::recomputed_saved_bytes,
                                     &layout::BlockInStage::sent_workspace_bytes,
                                     &layout::BlockInStage::weight_saved_share,
                                     &layout::BlockInStage::weight_workspace_bytes,
                                     &layout::BlockInStage::weight_input_bytes,
                                     &layout::BlockInStage::weight_output_bytes,
                                     &layout::BlockInStage::weight_gradient_bytes,
                                     &layout::BlockInStage::input_workspace_bytes};
constexpr size_t kNumbers = kCounted.size() + kCountedInStage.size();

double most_of(const std::vector<PassPart>& parts) {
  double most = 0;
  for (const auto& part : parts) most = std::max(most, part.peak);
  return most;
}

// The kNumbers numbers of each block, from the model on tensors without memory.
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
  std::vector<layout::ProfiledBlock> counted(blocks.size());
  const auto stages = count_stages(task, precision, small, large, samples);
  const auto generator =
      static_cast<double>(at::detail::getDefaultCPUGenerator().get_state().nbytes());
  std::map<std::string, double> trained;  // bytes by name
  for (const auto& [name, tensor] : nn::trained_parameters(task.module())) {
    trained.emplace(name, static_cast<double>(tensor.nbytes()));
  }
  std::vector<double> numbers;
  for (size_t i = 0; i < blocks.size(); ++i) {
    auto& block = counted[i];
    block.in_stage = stages[i];
    for (const auto& [name, tensor] : task.blocks().owned_state(blocks[i])) {
      const bool is_trained = trained.contains(name);
      (is_trained ? block.parameter_bytes : block.in_stage.fixed_bytes) +=
          static_cast<double>(tensor.nbytes());
    }
    for (const auto& name : blocks[i].borrows) {
      const auto known = trained.find(name);
      if (known != trained.end()) block.in_stage.borrowed_bytes += known->second;
    }
    // A recomputed block keeps the generator's state; an output layer is not
    // recomputed.
    const bool is_output_layer = task.blocks().has_output_layer() && i + 1 == blocks.size();
    block.output_bytes = static_cast<double>(costs[i].output_bytes);
    block.saved_bytes = memory[i].saved;
    block.workspace_bytes = memory[i].workspace;
    block.in_stage.recomputed_saved_bytes = is_output_layer ? memory[i].saved : generator;
    for (const auto number : kCounted) numbers.push_back(block.*number);
    for (const auto number : kCountedInStage) numbers.push_back(block.in_stage.*number);
  }
  return numbers;
}

// Returns the blocks with their names alone, and whether the last one has an output layer.
std::vector<layout::ProfiledBlock> named_blocks(const TrainOptions& options) {
  compat::DeferredInit without_memory;
  std::vector<layout::ProfiledBlock> named;
  without_memory.record([&] {
    const auto model = nn::make_model(options.model);
    for (const auto& block : model->blocks()) named.push_back({.name = block.name});
    named.back().has_output_layer = model->has_output_layer();
  });
  return named;
}

}  // namespace

data::Batch profiled_samples(const data::Dataset& dataset, int64_t samples) {
  std::vector<int64_t> indices(static_cast<size_t>(samples));
  for (int64_t i = 0; i < samples; ++i) indices[static_cast<size_t>(i)] = i % dataset.size();
  return dataset.load(indices, {});
}

std::vector<layout::ProfiledBlock> counted_blocks(const TrainOptions& options,
                                                  const data::Dataset& dataset,
                                                  const nn::NumericPrecision& precision,
                                                  int64_t samples, const comm::Group& group) {
  auto blocks = named_blocks(options);
  const auto numbers =
      at::zeros({static_cast<int64_t>(blocks.size()), static_cast<int64_t>(kNumbers)}, at::kDouble);
  group.barrier({.label = "bytes of blocks"});
  if (group.rank() == 0) {
    const auto counted = count_bytes(options, dataset, precision, samples);
    std::ranges::copy(counted, numbers.data_ptr<double>());
  }
  group.broadcast(numbers, 0, {.label = "bytes of blocks"}).wait();
  const auto rows = numbers.accessor<double, 2>();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto row = rows[static_cast<int64_t>(i)];
    int64_t column = 0;
    for (const auto number : kCounted) blocks[i].*number = row[column++];
    for (const auto number : kCountedInStage) blocks[i].in_stage.*number = row[column++];
  }
  return blocks;
}

std::vector<layout::BlockInStage> count_stages(Task& task, const nn::NumericPrecision& precision,
                                               const data::Batch& small, const data::Batch& large,
                                               int64_t samples) {
  const auto& model = task.blocks();
  std::vector<layout::BlockInStage> blocks(model.blocks().size());
  layout::StageEnds ends;
  for (size_t i = 0; i < blocks.size(); ++i) ends.push_back(i + 1);
  const parallel::StagesOfModel stages(model, ends);
  std::vector<bool> whole(blocks.size(), false), splits;
  for (size_t s = 0; s < ends.size(); ++s) {
    splits.push_back(parallel::can_split_backward(model, stages[static_cast<int>(s)]));
  }
  const double share = large.size() == small.size()
                           ? 1
                           : static_cast<double>(samples - small.size()) /
                                 static_cast<double>(large.size() - small.size());
  const auto measured = [&](const std::vector<bool>& split) {
    auto result = measure_stages(task, precision, stages, split, large);
    if (large.size() == small.size()) return result;
    const auto of_small = measure_stages(task, precision, stages, split, small);
    for (size_t s = 0; s < result.size(); ++s) {
      result[s] = interpolate(of_small[s], result[s], share);
    }
    return result;
  };
  const auto of_whole = measured(whole), of_split = measured(splits);
  for (size_t s = 0; s < blocks.size(); ++s) {
    blocks[s].sent_workspace_bytes = std::max({0.0, of_whole[s].forward_peak - of_whole[s].kept,
                                               most_of(of_whole[s].backward) - of_whole[s].kept});
    const auto& stage = of_split[s];
    if (stage.backward_weight.empty() || stage.kept <= 0) continue;
    const auto sum = [](const std::vector<double>& of) {
      return std::accumulate(of.begin(), of.end(), 0.0);
    };
    const double left = stage.backward.back().live;
    auto& own = blocks[s];
    own.weight_saved_share = std::max(0.0, left - sum(stage.gradients)) / stage.kept;
    own.weight_workspace_bytes = std::max(0.0, most_of(stage.backward_weight) - left);
    own.weight_input_bytes = stage.weight_part_takes_inputs ? sum(stage.taken) : 0;
    own.weight_output_bytes = stage.weight_part_takes_gradients ? sum(stage.given_gradients) : 0;
    own.weight_gradient_bytes = std::max(0.0, stage.weight_gradients - own.weight_output_bytes);
    own.input_workspace_bytes = std::max(0.0, most_of(stage.backward) - stage.kept);
  }
  return blocks;
}

double bytes_by_itself(const layout::ProfiledBlock& block) {
  constexpr double kCopies = 6;  // the optimizer's, with gradients and states, and the block's own
  return kCopies * block.parameter_bytes + block.saved_bytes + block.workspace_bytes;
}

double bytes_of_profile_by_blocks(const TrainOptions& options, const data::Dataset& dataset,
                                  int64_t samples, const comm::Group& group) {
  const auto precision = nn::parse_precision(options.trainer.precision);
  double most = 0, outputs = 0;
  for (const auto& block : counted_blocks(options, dataset, precision, samples, group)) {
    most = std::max(most, bytes_by_itself(block));
    outputs = std::max(outputs, block.output_bytes);
  }
  constexpr double kOutputs = 4;  // with their gradients, of a block and of the one before
  return most + kOutputs * outputs;
}

}  // namespace troika::train
