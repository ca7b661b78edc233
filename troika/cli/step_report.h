// The output of `troika plan --profile` for a search by Troika's cost model.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "troika/plan/search/step_search.h"

namespace troika::cli {

// Prints comments that explain the plan and its alternatives, and then `text`, the plan as TOML,
// which `troika plan --plan` reads. If no plan fits, explains the nearest one.
void print_search(const plan::StepModel& model, const plan::StepSearch& found,
                  const std::string& text);

nlohmann::ordered_json search_json(const plan::StepModel& model, const plan::StepSearch& found);

}  // namespace troika::cli
