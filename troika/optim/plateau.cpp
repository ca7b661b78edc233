#include "troika/optim/plateau.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "troika/base/error.h"

namespace troika::optim {

ReduceOnPlateau::ReduceOnPlateau(const ScheduleOptions& options) : options_(options) {}

void ReduceOnPlateau::judge(double value) {
  // Also for a negative best value, lower is better.
  const double border = best_ - options_.threshold * std::abs(best_);
  if (std::isinf(best_) ? value < best_ : value < border) {
    best_ = value;
    bad_ = 0;
  } else if (++bad_ > options_.patience) {
    factor_ = std::max(options_.final_factor, factor_ * options_.gamma);
    bad_ = 0;
  }
}

at::Tensor ReduceOnPlateau::state() const {
  return at::tensor({best_, static_cast<double>(bad_), factor_}, at::kDouble);
}

void ReduceOnPlateau::load_state(const at::Tensor& state) {
  if (state.dim() != 1 || state.size(0) != 3) {
    throw Error("optim", ErrorKind::usage,
                {.what = "state of ReduceOnPlateau",
                 .got = std::to_string(state.numel()) + " numbers",
                 .expected = "3"});
  }
  const at::Tensor values = state.to(at::kCPU, at::kDouble).contiguous();
  const double* v = values.data_ptr<double>();
  best_ = v[0];
  bad_ = static_cast<int64_t>(v[1]);
  factor_ = v[2];
}

}  // namespace troika::optim
