// Which functions a task overrides. C++ has no way to ask an object, so this compares the addresses
// that calls go to (GCC manual, "Bound Member Functions").
#include "troika/compat/torch.h"
#include "troika/train/task.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpmf-conversions"

namespace troika::train {

bool Task::has_own_loss() const {
  if (loss_) return true;
  using Called = at::Tensor (*)(Task*, const Outputs&, const data::Batch&);
  auto& task = const_cast<Task&>(*this);
  return (Called)(task.*(&Task::loss)) != (Called)(&Task::loss);
}

bool Task::has_own_training_step() const {
  using Called = at::Tensor (*)(Task*, const data::Batch&);
  auto& task = const_cast<Task&>(*this);
  return (Called)(task.*(&Task::training_step)) != (Called)(&Task::training_step);
}

}  // namespace troika::train

#pragma GCC diagnostic pop
