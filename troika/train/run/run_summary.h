// Makes the summary of a run, and the text printed at the end of a run or an evaluation.
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

// Returns the summary of a run before its first step: name, status, ranks, LibTorch's version and
// folder.
observe::RunSummary empty_summary(const TrainOptions& options, const comm::Group& group,
                                  const std::filesystem::path& folder, const std::string& status);

// Returns a line with the name and a line for each other computed value, without a final line
// break. `options` are the run's: for a stopped run, the text says how to resume, with `troika
// train` if the options name the model and the data, otherwise from the program.
std::string describe(const observe::RunSummary& summary, const TrainOptions& options);

// The same for a validation or test: a line with the mode, and a line for each metric.
std::string describe(RunMode mode, const observe::MetricValues& metrics);

}  // namespace troika::train
