// Which parameters are there while the blocks of a model run forward and backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "troika/nn/model.h"
#include "troika/parallel/parameter_shards.h"

namespace troika::parallel {

// The trained parameters that each block of the model owns, last block first, by type and device:
// what is gathered and averaged in one go.
std::vector<std::vector<std::string>> buckets_of_blocks(const nn::Model& model);
// For each block, the buckets, of those that trained parameters lie in, that hold what it computes
// with: its own parameters and those it borrows.
std::vector<std::vector<size_t>> buckets_needed(const nn::Model& model,
                                                const std::map<std::string, size_t>& buckets);

// Has a model's blocks find their parameters: those of a block, borrowed ones included, are
// gathered while the block before it runs, forward, and again while the one after it runs,
// backward, and released once the next has begun. The last block keeps them from its forward to its
// backward.
//
// Passes that do not keep a graph gather and release as well, so all ranks must make the same ones,
// but after gather_all(), until the next pass that keeps one or release_all(). Of one thread, or of
// backward passes of one.
class BlockParameters : public std::enable_shared_from_this<BlockParameters> {
 public:
  BlockParameters(nn::Model& model, const std::vector<Slot>& slots, ParameterShards& shards);
  // To be called once, when a shared_ptr owns this.
  void attach();
  // The model's blocks run by themselves again.
  void detach() { model_.run_blocks_by({}); }

  void gather_all();
  void release_all();

 private:
  at::Tensor run(size_t block, const at::Tensor& input);
  // Makes this block's parameters whole and starts to gather those of the next, if there is one.
  void enter(size_t block, int64_t next);

  nn::Model& model_;
  ParameterShards& shards_;
  std::vector<std::vector<size_t>> needs_;  // buckets, by block
  size_t bucket_count_ = 0;
  bool all_ = true;  // gather_all() holds, as at first
};

}  // namespace troika::parallel
