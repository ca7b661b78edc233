// Times the forward and backward passes of a model, block by block.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "troika/comm/group.h"
#include "troika/data/batch.h"
#include "troika/layout/stage_cut.h"
#include "troika/train/engine/placement.h"

namespace troika::nn {
class Model;
}

namespace troika::train {

class Task;

// Seconds of the passes of one block, an element for each round.
struct BlockSeconds {
  std::vector<double> forward, backward;
  // The parts of a split backward pass; as many elements as Round::split has had.
  std::vector<double> backward_input, backward_weight;
};

// How a micro-batch is run and timed.
enum class Round {
  whole,  // with whole backward passes
  split,  // with backward passes in two parts (compat::SplitBackward)
  extra,  // as `whole`; the times of its passes do not count
};

// The work of a block in one micro-batch, without the operators that are no products.
struct BlockProducts {
  struct Product {
    double flops = 0, bytes = 0;  // operands and results, each once
  };
  std::vector<Product> forward, backward;
};

// One stage for each block of the model.
layout::StageEnds each_block(const nn::Model& model);

// Runs micro-batches through a task's blocks in the order of a training step: all forward passes,
// then all backward passes from the last block to the first, and in Round::split then all weight
// parts. So a block finds the caches and the
// memory as in a run. Each block is a stage of a pipeline on this rank alone, because the tensors
// between stages end autograd's graph, and so each pass can be timed. In a group of several ranks,
// gradients add up over micro-batches: in a run, nearly all micro-batches add their gradients to
// others or copy them into a bucket, which takes the same time. Not thread-safe.
class BlockTimes {
 public:
  // The task's module must be placed already. `batch` is on the device. `group` is not used for
  // communication. All arguments must outlive this object. Throws Error(usage) for a task without
  // blocks (Task::blocks()).
  BlockTimes(Task& task, const Placement& placement, const data::Batch& batch,
             const comm::Group& group);
  ~BlockTimes();
  BlockTimes(const BlockTimes&) = delete;
  BlockTimes& operator=(const BlockTimes&) = delete;

  // Runs one micro-batch. Updates the statistics of batch norms. Returns the seconds of all passes.
  double run(Round round);
  // Runs one micro-batch and counts the products of each block.
  std::vector<BlockProducts> count_products();
  // Drops what run() has measured so far.
  void forget();

  // By block, in the order of the model.
  const std::vector<BlockSeconds>& seconds() const;

 private:
  class Source;
  struct Parts;

  std::unique_ptr<Parts> parts_;
};

}  // namespace troika::train
