#include "troika/train/engine/evaluator.h"

#include "troika/compat/torch.h"
#include "troika/train/task/task.h"

namespace troika::train {

void WholeModelEvaluator::evaluate(RunMode mode, const data::Batch& batch, Evaluation& sums) {
  const nn::Autocast autocast(placement_.precision, placement_.device.type());
  const auto placed = placement_.place(batch);
  mode == RunMode::test ? task_.test_step(placed, sums) : task_.validation_step(placed, sums);
}

at::Tensor WholeModelEvaluator::predict(const data::Batch& batch) {
  const nn::Autocast autocast(placement_.precision, placement_.device.type());
  return task_.predict_step(placement_.place(batch));
}

}  // namespace troika::train
