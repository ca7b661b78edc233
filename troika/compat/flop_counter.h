// Counts the floating-point operations of a training step's matrix products, convolutions, fused
// attention and fused recurrent layers, like PyTorch's FlopCounterMode, by observing the
// dispatcher.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace troika::compat {

// While this object exists, products of this thread are counted, and those of its backward passes
// on any autograd thread. mm, addmm, bmm and baddbmm count 2 m n k for [m, k] x [k, n]. A
// convolution counts 2 for each weight at each position, and the same number again for each
// gradient requested from it. Fused attention (scaled_dot_product_attention's kernels) counts like
// its products: 2 forward and 4 backward; the product that the backward kernel recomputes counts as
// recomputed. Fused recurrent layers (oneDNN, cuDNN) count 2 for each weight at each step, and 4
// backward. One counter at a time per thread. Counters and pauses of a thread must end in the
// reverse order of their start.
class [[nodiscard]] FlopCounter {
 public:
  FlopCounter();
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

  // While this object exists, nothing of this thread is counted: for trials that are not part of
  // the step.
  class [[nodiscard]] Pause {
   public:
    Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    const c10::DebugInfoGuard guard_;
  };

  // One product, or one operator that makes several. `bytes` counts its operands and results once
  // each: the minimum memory traffic.
  struct Work {
    int64_t flops = 0;
    int64_t bytes = 0;
    bool is_backward = false;  // made by a backward pass
  };
  // All of them, including recomputed ones.
  std::vector<Work> works() const;

  int64_t flops() const;
  // The forward-pass operations that backward passes recomputed; flops() excludes them.
  int64_t recomputed() const;

 private:
  struct Counts;
  struct Target;
  struct Observer;

  const std::shared_ptr<Counts> counts_;
  // Autograd passes this thread-local state, and callbacks, to the threads of its backward pass.
  const c10::DebugInfoGuard guard_;
  uint64_t handle_;
};

}  // namespace troika::compat
