// The end of a run or an evaluation, told when it is over.
#pragma once

#include <string>

#include "troika/observe/loggers/logger.h"
#include "troika/observe/summary.h"
#include "troika/train/options.h"
#include "troika/train/run_mode.h"

namespace troika::train {

// A line for the name, and one for each of the rest, without a line break at the end; nothing that
// was not computed. `options` are those of the run: they say how to go on with one that was
// stopped, by `troika train` where model and data have names in them, else from the program.
std::string describe(const observe::RunSummary& summary, const TrainOptions& options);

// The same for a validation or test: a line for the mode, and one for each metric.
std::string describe(RunMode mode, const observe::MetricValues& metrics);

}  // namespace troika::train
