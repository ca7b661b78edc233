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

// In which order a pass comes to the blocks of a model, forward, backward and where they are
// computed again.
class BlockOrder {
 public:
  explicit BlockOrder(size_t blocks);

  struct Stop {
    size_t block = 0;   // whose parameters are needed now
    int64_t next = -1;  // the block after it; -1: none
  };
  // As the block is about to run.
  Stop run(const nn::BlockRun& run);
  // As the backward pass comes to a block that has run: to it, or to the first of those that are
  // computed again with it.
  Stop backward(size_t block) const;

 private:
  int64_t before(size_t block) const;

  std::vector<size_t> backward_from_;  // of each block, as it last ran the first time
};

// Has a model's blocks find their parameters: those of a block, borrowed ones included, are
// gathered while the block before it in BlockOrder runs, and released once the next has begun. So
// they are gathered for the forward pass, where several blocks are computed again together for
// that, and for the backward pass; once for two of these that follow each other, as for the last
// block of all and where a block is computed again by itself.
//
// Passes that do not keep a graph gather and release as well, so all ranks must make the same ones,
// but after gather_all(), until the next pass that keeps one or release_all(). Of one thread, or of
// backward passes of one.
class BlockParameters : public nn::BlockWrapper,
                        public std::enable_shared_from_this<BlockParameters> {
 public:
  // `shards` must live until end().
  BlockParameters(const nn::Model& model, const std::vector<Slot>& slots, ParameterShards& shards);
  // From now on passes throw CheckError: those of graphs from before, which have this wrapper.
  void end() { shards_ = nullptr; }

  nn::WrapperKind kind() const override { return nn::WrapperKind::gather; }
  nn::Tensors run(const nn::BlockRun& run, nn::Tensors inputs,
                  const nn::InnerBlocks& next) override;

  void gather_all();
  void release_all();
  // Whether gather_all() holds.
  bool has_all() const { return all_; }

 private:
  // Makes this block's parameters whole and starts to gather those of the next, if there is one.
  void enter(const BlockOrder::Stop& stop);

  ParameterShards* shards_;  // null once ended
  BlockOrder order_;
  std::vector<std::vector<size_t>> needs_;  // buckets, by block
  size_t bucket_count_ = 0;
  bool all_ = false;
};

}  // namespace troika::parallel
