// Checks whether a task can be cut into the stages of a plan.
#pragma once

namespace troika::layout {
struct Plan;
}

namespace troika::train {

class Task;

// Throws Error(usage) if a plan has several stages and the task cannot be cut: if it overrides
// training_step(), validation_step(), test_step() or predict_step(), which need the whole model in
// one place, or if it has no blocks. The error names the task's class, and the overridden step.
void require_cuttable(const Task& task, const layout::Plan& plan);

}  // namespace troika::train
