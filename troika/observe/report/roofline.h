// Compares a step of the run with the bounds of the machine.
#pragma once

#include <string>

#include "troika/observe/report/run_record.h"

namespace troika::observe::report {

// The page's section as HTML: each phase's share of the step with its FLOPs and bytes against the
// Roofline of the run's summary, the exposed communication, and the slowest rank.
std::string roofline(const RunRecord& run);

}  // namespace troika::observe::report
