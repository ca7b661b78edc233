// Measures the memory of a forward and backward pass over time, with small batches.
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
    gradient,  // of trained parameter `index`, as nn::trained_parameters() counts them
    block,     // block `index` of the model is about to run, forward or backward
    end,
  };
  Kind kind = Kind::end;
  size_t index = 0;
  int64_t next = -1;  // for `block`: the block that follows it; -1: none

  bool operator==(const PassEvent&) const = default;
};

// The bytes of a part of a pass beyond those before the pass. A parameter's gradient counts until
// its event only.
struct PassPart {
  PassEvent until;
  double peak = 0;  // the maximum within this part
  double live = 0;  // at the end of this part
};

// Interpolates between the parts of passes over two sizes of batches: `share` is 0 for `smaller`, 1
// for `larger`. Throws Error(failure) if their events differ.
std::vector<PassPart> interpolate(const std::vector<PassPart>& smaller,
                                  const std::vector<PassPart>& larger, double share);

// The memory of a pass for any batch size, by affine interpolation between two measured sizes, and
// the peak of a validation batch.
class PassMemory {
 public:
  // Runs passes of the task on `smaller` and on `larger` batches, which may have the same size.
  // Needs compat::count_tensor_memory(), and no other thread that makes tensors. The task's module
  // must have the precision's type. The passes update its batch-norm statistics. If the module is
  // an nn::Model, its blocks are events too.
  PassMemory(Task& task, const nn::NumericPrecision& precision, const data::Batch& smaller,
             const data::Batch& larger);

  std::vector<PassPart> parts(int64_t batch) const;
  // The peak bytes in validation_step(), beyond those before it.
  double validation(int64_t batch) const;

 private:
  // Position of `batch` between the smaller (0) and the larger (1) measured size.
  double fraction(int64_t batch) const;

  int64_t smaller_;
  int64_t larger_;
  std::vector<PassPart> of_smaller_;
  std::vector<PassPart> of_larger_;
  double validation_of_smaller_;
  double validation_of_larger_;
};

}  // namespace troika::train
