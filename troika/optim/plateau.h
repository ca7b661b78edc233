// A learning rate that drops when a metric stops improving.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

#include "troika/optim/schedule.h"

namespace troika::optim {

// Multiplies the factor by gamma, down to final_factor, once a value that should fall (a validation
// loss) has not improved on its best by the relative `threshold` for more than `patience`
// evaluations in a row. PyTorch's ReduceLROnPlateau with mode `min` and a relative threshold. With
// the same values, all ranks get the same factor.
class ReduceOnPlateau {
 public:
  explicit ReduceOnPlateau(const ScheduleOptions& options);

  void judge(double value);  // NaN is never an improvement
  double factor() const { return factor_; }

  // [3], float64: best value, evaluations without improvement, factor.
  at::Tensor state() const;
  void load_state(const at::Tensor& state);

 private:
  const ScheduleOptions options_;
  double best_ = std::numeric_limits<double>::infinity();
  int64_t bad_ = 0;
  double factor_ = 1.0;
};

}  // namespace troika::optim
