// The memory that a forward and backward pass takes, moment by moment, found by making small ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "troika/data/dataset.h"
#include "troika/nn/precision.h"
#include "troika/train/task/task.h"

namespace troika::train {

// The event that ends a part of a pass.
struct PassEvent {
  enum class Kind {
    forward_done,
    gradient,  // of trained parameter `index`, numbered as nn::trained_parameters() lists them
    block,     // the model's block `index` is about to run, forward or backward
    end,
  };
  Kind kind = Kind::end;
  size_t index = 0;
  int64_t next = -1;  // of `block`: the one that comes after it; -1: none

  bool operator==(const PassEvent&) const = default;
};

// Bytes of a part of a pass, over what was there before the pass. Gradients of parameters count
// until their event, and not after.
struct PassPart {
  PassEvent until;
  double peak = 0;  // the most in this part
  double live = 0;  // at its end
};

// The course of a pass for any size of batch, of which each number is an affine function, and the
// most that a batch of a validation takes.
class PassMemory {
 public:
  // From passes of the task on `smaller` and on `larger` batches, which may be equal. Needs
  // compat::count_tensor_memory(), and a thread that no other disturbs. The task's module is in the
  // precision's type and is not spared: batch norms take the statistics of the batches. Where it is
  // an nn::Model, its blocks are events too.
  PassMemory(Task& task, const nn::Precision& precision, const data::Batch& smaller,
             const data::Batch& larger);

  std::vector<PassPart> parts(int64_t batch) const;
  // Bytes at the most in validation_step(), over what was there before.
  double validation(int64_t batch) const;

 private:
  // How far the batch is on the way from the smaller to the larger.
  double way(int64_t batch) const;

  int64_t smaller_;
  int64_t larger_;
  std::vector<PassPart> of_smaller_;
  std::vector<PassPart> of_larger_;
  double validation_of_smaller_;
  double validation_of_larger_;
};

}  // namespace troika::train
