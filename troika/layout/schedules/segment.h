// The passes of a pipeline without flushes between two drains.
#pragma once

#include "troika/layout/schedules/schedule.h"
#include "troika/layout/schedules/stage_weights.h"

namespace troika::layout {

// Returns the order of `micro_batches` micro-batches, without messages. The line of a stage has the
// passes of all of its replicas; a replica runs those of its own micro-batches, in this order.
Schedule asynchronous_order(const AsynchronousPipeline& pipeline, int micro_batches);

// Returns the actions of `steps` steps, with the messages between stages. Each stage reduces as
// soon as the gradient of a step's last micro-batch is sent, and then steps, or before the next
// backward pass if AsynchronousStage::steps_after_forward(). Schedule::verify() refuses it, because
// passes follow steps.
Schedule asynchronous_segment(const AsynchronousPipeline& pipeline, int steps);

}  // namespace troika::layout
