// How many floating-point operations the matrix products, convolutions and fused attention of a
// training step are: what PyTorch's FlopCounterMode counts, by observing the dispatcher.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace troika::compat {

// While it lives, products of this thread count, and those of its backward passes on whatever
// thread autograd runs them: 2 m n k for [m, k] x [k, n] in mm, addmm, bmm and baddbmm; for a
// convolution 2 for each weight and each place it is put at; as much for each gradient that is
// asked of it. Fused attention (scaled_dot_product_attention's kernels) counts as its products
// would: 2 forward, 4 backward, and the one that the backward kernel makes again as recomputed. One
// at a time in a thread. Counters and pauses of a thread end in the reverse order of their
// beginning.
class [[nodiscard]] FlopCounter {
 public:
  FlopCounter();
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

  // While it lives, nothing of this thread counts: for trials that are no part of the step.
  class [[nodiscard]] Pause {
   public:
    Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    const c10::DebugInfoGuard guard_;
  };

  // One product, or one operator that makes several. `bytes` are those of its operands and results,
  // each once, which is the least that memory must move.
  struct Work {
    int64_t flops = 0;
    int64_t bytes = 0;
    bool is_backward = false;  // by a backward pass
  };
  // All of them, also those made again.
  std::vector<Work> works() const;

  int64_t flops() const;
  // The part that backward passes made again of forward passes, which flops() leaves out.
  int64_t recomputed() const;

 private:
  struct Counts;
  struct Target;
  struct Observer;

  const std::shared_ptr<Counts> counts_;
  // Autograd hands what a thread's guards set to the threads of its backward pass, as it does with
  // callbacks.
  const c10::DebugInfoGuard guard_;
  uint64_t handle_;
};

}  // namespace troika::compat
