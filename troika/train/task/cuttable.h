// Whether a task can be cut into the stages of a plan.
#pragma once

namespace troika::layout {
struct Plan;
}

namespace troika::train {

class Task;

// For a plan of several stages, throws Error(usage) naming the task's class and step where it
// overrides training_step(), validation_step(), test_step() or predict_step(), which need the whole
// model in one place; and naming its class where it has no blocks to cut.
void require_cuttable(const Task& task, const layout::Plan& plan);

}  // namespace troika::train
