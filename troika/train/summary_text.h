// The end of a run, told when it is over.
#pragma once

#include <string>

#include "troika/train/options.h"
#include "troika/train/summary.h"

namespace troika::train {

// A line for the name, and one for each of the rest, without a line break at the end; nothing that
// was not computed. `options` are those of the run: they say how to go on with one that was
// stopped, by `troika train` where model and data have names in them, else from the program.
std::string describe(const RunSummary& summary, const TrainOptions& options);

}  // namespace troika::train
