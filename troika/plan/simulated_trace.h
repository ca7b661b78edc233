// Export of simulated schedules as traces.
#pragma once

#include <string>

#include "troika/plan/simulator.h"

namespace troika::plan {

// Returns a trace file (troika/base/trace.h) with a lane per rank and a span per pass, named as in
// the text form of schedules. `unit` is the simulation's unit of time in seconds.
std::string trace_of(const Simulation& simulation, double unit);

}  // namespace troika::plan
