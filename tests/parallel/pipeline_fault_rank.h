// One rank of a pipeline in which one rank misbehaves.
#pragma once

#include "tests/comm/fault_rank.h"

namespace troika::parallel {

inline constexpr int kFaultStages = 4;

// Every rank trains one of kFaultStages stages with 1f1b and 8 micro-batches. `plan.fault` is
// "kill", "stop", "delay" (the rank hangs) or "throw"; `plan.when` is "forward" or "backward": the
// victim's pass of micro-batch 3; or "receive": a neighbour kills or stops the victim while it
// waits for micro-batch 3. Each rank reports its error to the test as in comm::run_fault_rank().
int run_pipeline_fault_rank(const comm::FaultPlan& plan);

}  // namespace troika::parallel
