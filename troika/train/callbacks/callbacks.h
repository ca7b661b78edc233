// Makes the callbacks that the options configure. Their base class is Callback (run/callback.h).
#pragma once

#include "troika/observe/loggers/logger.h"
#include "troika/train/run/callback.h"

namespace troika::train {

struct TrainOptions;
class Task;

Callbacks make_callbacks(const TrainOptions& options);

// Checks after the sanity validation, which returned `validated`, that the metrics that callbacks
// monitor will be logged. Throws the error of a monitored metric that will never be logged. Metrics
// logged by hooks and by a task's own training steps are not known before the first epoch; if a
// monitored metric may be one of these, a rank with `warns` logs a warning instead. Does nothing if
// `validated` is empty.
void require_monitored(const Callbacks& callbacks, const TrainOptions& options, const Task& task,
                       const observe::MetricValues& validated, bool warns);

}  // namespace troika::train
