// The section of the page that compares a run with its simulation.
#pragma once

#include <map>
#include <string>

#include "troika/observe/report/run_record.h"

namespace troika::observe::report {

// Returns the milliseconds of a step by phase, and of the whole step (`step`): means over ranks,
// and over steps without the first one, unless it is the only one.
std::map<std::string, double> mean_phases(const TraceRecord& trace);

// Draws a step of the simulated trace, and lists its phases beside the run's. Empty if the run's
// folder has no simulated trace.
std::string comparison(const RunRecord& run);

}  // namespace troika::observe::report
