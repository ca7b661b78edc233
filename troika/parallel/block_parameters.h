// Gathering and releasing of parameters, block by block, while a model runs forward and backward
// (ZeRO 3).
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

// Returns the names of each block's own trained parameters, last block first, split by type and
// device. Each list is gathered and averaged as one bucket.
std::vector<std::vector<std::string>> buckets_of_blocks(const nn::Model& model);
// Returns for each block the indices of the buckets that hold its own and its borrowed trained
// parameters. `buckets` maps the name of a trained parameter to its bucket.
std::vector<std::vector<size_t>> buckets_needed(const nn::Model& model,
                                                const std::map<std::string, size_t>& buckets);

// The order in which a forward pass, a backward pass and a recomputation visit the blocks of a
// model.
class BlockOrder {
 public:
  explicit BlockOrder(size_t blocks);

  struct Stop {
    size_t block = 0;   // the block whose parameters are needed now
    int64_t next = -1;  // the block visited after it; -1: none
  };
  // Called when the block is about to run.
  Stop run(const nn::BlockRun& run);
  // Called when the backward pass reaches a block that has run. Returns that block, or the first
  // block of its segment if several blocks are recomputed together.
  Stop backward(size_t block) const;

 private:
  int64_t before(size_t block) const;

  std::vector<size_t> backward_from_;  // by block: where its backward pass starts
};

// Gathers the parameters of a model's blocks before they run. A block's parameters, borrowed
// ones included, are gathered while the previous block in BlockOrder runs, and released once the
// next block has begun. A block's parameters are gathered for its forward pass, for a recomputation
// of several blocks, and for its backward pass. Two of these that directly follow each other share
// one gather: the last block's forward and backward pass, and the recomputation of a single block
// and its backward pass.
//
// Forward passes without a graph gather and release as well, so all ranks must run the same forward
// passes. After gather_all() nothing is gathered or released until release_all() or the next
// forward pass that keeps a graph. Used by one thread at a time; backward passes may use another
// thread than forward passes.
class BlockParameters : public nn::BlockWrapper,
                        public std::enable_shared_from_this<BlockParameters> {
 public:
  // `shards` must live until end().
  BlockParameters(const nn::Model& model, const std::vector<GradientSlot>& slots,
                  ParameterShards& shards);
  // After this call, forward passes throw CheckError, and backward passes gather nothing.
  void end() { shards_ = nullptr; }

  nn::WrapperKind kind() const override { return nn::WrapperKind::gather; }
  nn::Tensors run(const nn::BlockRun& run, nn::Tensors inputs,
                  const nn::InnerBlocks& next) override;

  void gather_all();
  void release_all();
  // Whether gather_all() was the last call that changed which parameters are gathered.
  bool has_all() const { return all_; }

 private:
  // Waits for this block's parameters and starts to gather those of the next block, if any.
  void enter(const BlockOrder::Stop& stop);

  ParameterShards* shards_;  // null once ended
  BlockOrder order_;
  std::vector<std::vector<size_t>> needs_;  // buckets, by block
  size_t bucket_count_ = 0;
  bool all_ = false;
};

}  // namespace troika::parallel
