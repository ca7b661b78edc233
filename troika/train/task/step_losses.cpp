#include "troika/train/task/step_losses.h"

#include <utility>

#include "troika/compat/torch.h"

namespace troika::train {

void StepLosses::add(const at::Tensor& loss, int64_t step, int64_t epoch,
                     const data::Batch& batch) {
  losses_.push_back(loss.detach().reshape({}).to(at::kDouble));
  kept_.push_back({.step = step, .size = batch.size(), .samples = batch.samples, .epoch = epoch});
}

std::vector<StepLoss> StepLosses::read() {
  if (kept_.empty()) return {};
  const at::Tensor numbers = at::stack(std::exchange(losses_, {})).cpu();
  auto result = std::exchange(kept_, {});
  for (size_t i = 0; i < result.size(); ++i) result[i].loss = numbers.data_ptr<double>()[i];
  return result;
}

}  // namespace troika::train
