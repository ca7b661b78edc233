// Detects losses that broadcast one argument to the shape of the other, e.g. a target without the
// output's last dimension. PyTorch warns of this in Python; LibTorch does not.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace troika::compat {

// While this object exists, calls `take` for each mse_loss, l1_loss, smooth_l1_loss, huber_loss and
// binary_cross_entropy_with_logits on this thread whose arguments have different shapes. Slows all
// operators of the thread, so use it for a single step.
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
