// A learning rate that falls when training no longer helps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

#include "troika/optim/schedule.h"

namespace troika::optim {

// Multiplies the rate by gamma once a value that should fall (a validation loss) has not been lower
// than its best by `threshold` of it for more than `patience` judgements in a row; down to
// final_factor. PyTorch's ReduceLROnPlateau with mode `min` and a relative threshold. Given the
// same values, all ranks come to the same factor.
class ReduceOnPlateau {
 public:
  explicit ReduceOnPlateau(const ScheduleOptions& options);

  void judge(double value);  // NaN is never progress
  double factor() const { return factor_; }

  // [3], float64: best value, judgements without progress, factor.
  at::Tensor state() const;
  void load_state(const at::Tensor& state);

 private:
  const ScheduleOptions options_;
  double best_ = std::numeric_limits<double>::infinity();
  int64_t bad_ = 0;
  double factor_ = 1.0;
};

}  // namespace troika::optim
