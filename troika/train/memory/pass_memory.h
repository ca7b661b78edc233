// Measures the memory of a forward and backward pass over time, with small batches.
#pragma once

#include <cstdint>
#include <vector>

#include "troika/data/dataset.h"
#include "troika/nn/precision.h"
#include "troika/plan/memory/pass_parts.h"
#include "troika/train/task/task.h"

namespace troika::train {

using plan::PassEvent;
using plan::PassPart;

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
