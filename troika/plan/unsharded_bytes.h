// The memory of ZeRO that is not sharded.
#pragma once

#include <span>

namespace troika::plan {

struct ShardedBlocks {
  std::span<const double> parameter_bytes;  // of each block
  int zero_stage = 0;
  bool accumulates = false;  // several micro-batches make a step
  double bucket_bytes = 0;   // GradientExchange::bucket_bytes
};

// Returns the most bytes of whole gradients and gathered parameters that a rank has beside its
// shards; 0 below stage 2. In the last backward pass, two buckets of gradients are open, one of
// which is reduced while the other one is filled. Earlier micro-batches leave whole gradients.
// Stage 3 has whole parameters of the block that runs and of the one that follows it. As
// train::ExchangeMemory, which knows the parameters themselves.
double unsharded_bytes(const ShardedBlocks& blocks);

}  // namespace troika::plan
