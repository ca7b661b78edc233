// The output of `troika plan --profile` for a search by Troika's cost model.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "troika/plan/search/step_search.h"

namespace troika::cli {

// Prints comments that explain the plan and its alternatives, and then the plan as TOML, which
// `troika plan --plan` reads. If no plan fits, prints the nearest one.
void print_search(const plan::StepModel& model, const plan::StepSearch& found);

nlohmann::ordered_json search_json(const plan::StepModel& model, const plan::StepSearch& found);

}  // namespace troika::cli
