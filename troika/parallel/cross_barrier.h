// Optimizer steps that do not wait for all means (cross-barrier: Jiang et al., OSDI 2020, section
// 5; Peng et al., SOSP 2019). Internal to the room.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "troika/nn/block_wrapper.h"

namespace troika::nn {
class Model;
}

namespace troika::parallel {

class BucketSums;
class Reducer;

// Steps the parameters of each bucket when its mean is there. A forward pass waits before each
// block for the buckets of its parameters, and before the last block for all; while it waits, it
// steps the other buckets whose means come. Used by one thread at a time.
class CrossBarrier : public nn::BlockWrapper {
 public:
  // `model`, `reducer` and `sums` must live until end().
  CrossBarrier(const nn::Model& model, Reducer& reducer, BucketSums& sums);
  // After this call, passes wait for nothing.
  void end() { left_.clear(); }

  // Called when the reducer has left its sums. `update` steps the parameters that have a .grad.
  void begin(std::function<void()> update);
  // Blocks until all parameters are stepped. Throws the errors of BucketSums::finish().
  void finish();

  // In the order of wrappers, parameters are made ready where ZeRO gathers them.
  nn::WrapperKind kind() const override { return nn::WrapperKind::gather; }
  nn::Tensors run(const nn::BlockRun& run, nn::Tensors inputs,
                  const nn::InnerBlocks& next) override;

 private:
  void finish_those(const std::vector<size_t>& buckets);

  const nn::Model& model_;
  Reducer& reducer_;
  BucketSums& sums_;
  std::vector<std::vector<size_t>> needs_;  // buckets, by block
  std::vector<size_t> left_;  // buckets that are not stepped; those of the first blocks first
  std::function<void()> update_;
};

}  // namespace troika::parallel
