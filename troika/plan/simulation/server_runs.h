// Simulations of the runs whose ranks exchange values with servers. Internal to the folder; see
// simulate_run().
#pragma once

#include "troika/plan/simulation/run_simulator.h"

namespace troika::plan {

// All take a run that SimulatedRun::verify() takes.

// A summation of the plan with cross_barrier or asynchronous.
RunSimulation simulate_summation(const SimulatedRun& run);
RunSimulation simulate_parameter_servers(const SimulatedRun& run);
RunSimulation simulate_downpour(const SimulatedRun& run);
RunSimulation simulate_sandblaster(const SimulatedRun& run);

}  // namespace troika::plan
