// The callbacks that options ask for.
#pragma once

#include "troika/observe/loggers/logger.h"
#include "troika/train/run/callback.h"

namespace troika::train {

struct TrainOptions;
class Task;

Callbacks make_callbacks(const TrainOptions& options);

// Looks at what each of a run's callbacks monitors after the sanity validation, which gave
// `validated`. Throws the error of a monitored metric that nobody will log. Metrics of hooks, and
// of training steps of a task's own, are not known before the first epoch: what may be one of
// them is a warning of the rank that `warns`. Does nothing where nothing was validated.
void require_monitored(const Callbacks& callbacks, const TrainOptions& options, const Task& task,
                       const observe::MetricValues& validated, bool warns);

}  // namespace troika::train
