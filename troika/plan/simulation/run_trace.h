// Export of simulated runs as traces.
#pragma once

#include <string>

#include "troika/plan/simulation/run_simulator.h"

namespace troika::plan {

// Returns a trace file (troika/base/trace.h) of a simulated run that recorded its spans. It has the
// tracks of a real run's trace: `compute` has the steps with their forward and backward passes,
// optimizer, and waits for collectives (finish_backward); `communication` has the collectives along
// the data axis. In addition, `passes` names each pass in the text form of schedules, and
// `messages` has the sends. Throws Error(usage) for times beyond 9e9 seconds, which a trace cannot
// have.
std::string trace_of(const RunSimulation& simulation);

}  // namespace troika::plan
