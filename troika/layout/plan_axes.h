// The checks of what a plan says of its tensor and context axes.
#pragma once

namespace troika::layout {

struct Plan;

// Throws Error(usage), naming the key, for values of an axis that the plan's mesh lacks, and for
// ModelStages::tensor_overlap where it has nothing to overlap or does not combine with the plan.
void verify_axes(const Plan& plan);

}  // namespace troika::layout
