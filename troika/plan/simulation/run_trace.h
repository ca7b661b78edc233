// Export of simulated runs as traces.
#pragma once

#include <string>

#include "troika/plan/simulation/run_simulator.h"

namespace troika::plan {

// Returns a trace file (troika/base/trace.h) of a run that recorded its spans, with the tracks of
// runs: `compute` has steps with their forward and backward passes, optimizer, and waits for
// collectives (finish_backward); `communication` has the collectives along the data axis. In
// addition `passes` names each pass as the text form of schedules does, and `messages` has the
// sends.
std::string trace_of(const RunSimulation& simulation);

}  // namespace troika::plan
