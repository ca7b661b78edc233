#include "troika/train/profile/rank_means.h"

#include "troika/compat/torch.h"

namespace troika::train {

void average_over_ranks(const at::Tensor& numbers, const comm::Group& group) {
  group.all_reduce(numbers, comm::ReduceOp::sum, {.label = "profile"}).wait();
  numbers.div_(group.size());
}

double mean_over_ranks(double own, const comm::Group& group) {
  const auto number = at::full({1}, own, at::kDouble);
  average_over_ranks(number, group);
  return number.item<double>();
}

}  // namespace troika::train
