// Reads a plan from a file, for the commands that take one.
#pragma once

#include <string>
#include <vector>

#include "troika/train/options/options.h"

namespace troika::cli {

// In place of a file: a plan that is found by measurement.
inline constexpr const char* kAutomaticPlan = "auto";

// Puts the plan of the file into the options: sets trainer.plan and the options that the plan
// decides (train::with_plan()). Throws Error(usage) if the file is not a plan, or if `overrides`,
// the --section.name=value arguments already applied, set an option that the plan decides.
void take_plan(train::TrainOptions& options, const std::string& file,
               const std::vector<std::string>& overrides);

}  // namespace troika::cli
