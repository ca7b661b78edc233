#include "troika/train/profile/counted_blocks.h"

#include <algorithm>
#include <memory>
#include <set>

#include "troika/compat/deferred_init.h"
#include "troika/compat/fake_tensors.h"
#include "troika/compat/torch.h"
#include "troika/nn/recompute/block_costs.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"
#include "troika/train/memory/pass_memory.h"
#include "troika/train/options/limits.h"
#include "troika/train/profile/block_memory.h"
#include "troika/train/task/task.h"

namespace troika::train {

namespace {

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
