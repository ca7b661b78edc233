// The work of one rank in the passes of a model's blocks, counted on tensors without memory.
#pragma once

#include <cstdint>
#include <vector>

#include "troika/data/dataset.h"
#include "troika/layout/profile.h"
#include "troika/nn/precision.h"
#include "troika/train/options/options.h"
#include "troika/train/profile/block_memory.h"

namespace troika::train {

// Attention in the forward pass of a block.
struct AttentionWork {
  double flops = 0;
  double pair_bytes = 0;           // of keys and values
  double pair_gradient_bytes = 0;  // of their gradients, in float32 at least
  double all_bytes = 0;            // of queries, keys, values and the result
  int64_t calls = 0;
  int64_t heads = 0;  // the greatest common divisor of the calls' numbers of heads
};

struct BlockWork {
  BlockMemory memory = {};
  layout::BlockInStage in_stage = {};  // on a tensor axis, as of count_stages()
  double flops = 0, output_bytes = 0;
  int64_t tokens = 0;                                         // of the output; 0: it has none
  std::vector<double> forward_sums = {}, backward_sums = {};  // bytes of collectives
  AttentionWork attention = {};                               // without a context axis
  // About the FLOPs that take as long as the passes (as nn::estimate_blocks()).
  double cost() const { return flops + other_cost(); }
  // That of the operators that are not products, in both passes.
  double other_cost() const {
    constexpr double kFlopsPerByte = 10, kPasses = 2;
    return kPasses * kFlopsPerByte * memory.saved;
  }
};

// Batches with memory, made before tensors without memory.
struct CountedBatches {
  CountedBatches(const data::Dataset& dataset, int64_t samples);
  data::Batch larger, smaller, whole;  // the first two as MemoryPredictor's
};

// The axes on which a rank is the first one.
struct RankAxes {
  int tensor = 1;
  bool sequence = false;  // sequence parallelism
  int context = 1;        // by rings
};

// Runs a step of the model that the options name as that rank, without the others, and returns the
// work of its blocks: memory and FLOPs of both passes, and collectives of the tensor axis. Throws
// the errors of parallel::TensorParallel and parallel::ContextParallel. Needs
// compat::count_tensor_memory().
std::vector<BlockWork> work_of_rank(const TrainOptions& options, const CountedBatches& batches,
                                    const nn::NumericPrecision& precision, const RankAxes& axes);

// Returns the share of `whole` of which each of the ranks has one part, if one rank has `part`.
double divided_share(double whole, double part, int ranks);

}  // namespace troika::train
