// Results of simulations on a cluster, as text and JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "troika/plan/simulation/goodput.h"
#include "troika/plan/simulation/sweep.h"

namespace troika::cli {

// Each prints the results as text to the standard output, and returns them for --json.
nlohmann::ordered_json show(const plan::SweptRun& asked, const plan::RunSimulation& simulation);
nlohmann::ordered_json show(const plan::Goodput& goodput);
nlohmann::ordered_json show(const std::vector<plan::DevicesPoint>& points);
nlohmann::ordered_json show(const std::vector<plan::MicroBatchesPoint>& points);

}  // namespace troika::cli
