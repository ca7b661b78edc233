// The parts of the memory of a rank.
#pragma once

namespace troika::plan {

// The tensor bytes of one rank, as base/memory.h counts them, at the peak of a step.
struct MemoryParts {
  double parameters = 0;   // and buffers
  double gradients = 0;    // averaged
  double optimizer = 0;    // states, float32 masters and their gradients, averages of weights
  double activations = 0;  // saved by the forward pass for the backward pass
  double buckets = 0;      // gradients and parameters in communication, and messages of stages
  double workspace = 0;    // temporary tensors of operators, and recomputed activations
  double batches = 0;      // the current batch and prefetched ones

  double sum() const {
    return parameters + gradients + optimizer + activations + buckets + workspace + batches;
  }
};

}  // namespace troika::plan
