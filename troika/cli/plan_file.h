// A plan from a file, for the commands that take one.
#pragma once

#include <string>
#include <vector>

#include "troika/train/options/options.h"

namespace troika::cli {

// Puts the plan of the file into the options: trainer.plan, and what the plan has in its place
// (train::with_plan()). Throws Error(usage) for a file that is no plan, and where `overrides`, the
// arguments --section.name=value that have been read, set what the plan decides.
void take_plan(train::TrainOptions& options, const std::string& file,
               const std::vector<std::string>& overrides);

}  // namespace troika::cli
