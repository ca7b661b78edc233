// Simulated schedules in the format of traces of runs.
#pragma once

#include <string>

#include "troika/plan/simulator.h"

namespace troika::plan {

// A trace file (troika/base/trace.h) with a lane for each rank and a span for each pass, which is
// named as in the text of schedules. `unit` is the simulation's unit of time in seconds.
std::string trace_of(const Simulation& simulation, double unit);

}  // namespace troika::plan
