// How many floating-point operations the matrix products and convolutions of a training step are:
// what PyTorch's FlopCounterMode counts, by observing the dispatcher.
#pragma once

#include <cstdint>

namespace troika::compat {

// While it lives, products of this thread count, those of its backward passes included: 2 m n k for
// [m, k] x [k, n] in mm, addmm, bmm and baddbmm; for a convolution 2 for each weight and each place
// it is put at; as much for each gradient that is asked of it. One at a time in a thread.
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
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    FlopCounter* const paused_;
  };

  int64_t flops() const { return flops_; }
  // What a backward pass made again of the forward pass, which flops() leaves out.
  int64_t recomputed() const { return recomputed_; }

 private:
  struct Observer;

  uint64_t handle_;
  int64_t flops_ = 0;
  int64_t recomputed_ = 0;
  int inside_ = 0;    // of operators that count, one in another
  int backward_ = 0;  // nodes of a backward pass, one in another
};

}  // namespace troika::compat
