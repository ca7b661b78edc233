// Losses that broadcast one argument against the other, as a target without the output's last
// dimension: PyTorch warns of them in Python, LibTorch computes them.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace troika::compat {

// While it lives, `take` is called at each of mse_loss, l1_loss, smooth_l1_loss, huber_loss and
// binary_cross_entropy_with_logits on this thread whose arguments have different shapes. It slows
// all operators of the thread: for a single step.
class [[nodiscard]] LossWatch {
 public:
  using Take =
      std::function<void(std::string_view loss, c10::IntArrayRef input, c10::IntArrayRef target)>;

  explicit LossWatch(Take take);
  ~LossWatch();
  LossWatch(const LossWatch&) = delete;
  LossWatch& operator=(const LossWatch&) = delete;

 private:
  struct Target;

  const std::unique_ptr<Target> target_;
};

}  // namespace troika::compat
