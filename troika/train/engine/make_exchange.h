// Builds the gradient exchange of a plan.
#pragma once

#include <memory>

#include "troika/comm/group.h"
#include "troika/layout/plan.h"
#include "troika/parallel/exchange.h"
#include "troika/train/options/options.h"
#include "troika/train/task/task.h"

namespace troika {
class Trace;
}

namespace troika::train {

// Makes the plan's exchange for the task's module. `options` give what no plan has: the optimizer's
// name. Throws Error(usage) for a task with
// another number of replicas than the plan has threads, and for a precision that the exchange
// cannot do. Tells `trace` of gradients' ways, unless it is null. `values` are those of
// parallel::ShardedOptions, for the third stage of ZeRO alone. Blocks; called by all ranks.
std::unique_ptr<parallel::Exchange> make_exchange(const layout::Plan& plan,
                                                  const TrainOptions& options, Task& task,
                                                  const comm::Group& group, Trace* trace,
                                                  compat::DeferredInit* values = nullptr);

}  // namespace troika::train
