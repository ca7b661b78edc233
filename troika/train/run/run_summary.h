// The summary of a run, and the text that a run or an evaluation prints at its end.
#pragma once

#include <filesystem>
#include <string>

#include "troika/observe/loggers/logger.h"
#include "troika/observe/summary.h"
#include "troika/train/options/options.h"
#include "troika/train/options/run_mode.h"

namespace troika::comm {
class Group;
}

namespace troika::train {

// The summary of a run before its first step: name, status, ranks, LibTorch's version and folder.
observe::RunSummary empty_summary(const TrainOptions& options, const comm::Group& group,
                                  const std::filesystem::path& folder, const std::string& status);

// A line for the name, and one for each of the rest, without a line break at the end; nothing that
// was not computed. `options` are those of the run: they say how to go on with one that was
// stopped, by `troika train` where model and data have names in them, else from the program.
std::string describe(const observe::RunSummary& summary, const TrainOptions& options);

// The same for a validation or test: a line for the mode, and one for each metric.
std::string describe(RunMode mode, const observe::MetricValues& metrics);

}  // namespace troika::train
