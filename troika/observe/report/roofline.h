// What the machine could do in the time of a step, and what the run did.
#pragma once

#include <string>

#include "troika/observe/report/run_record.h"

namespace troika::observe::report {

// The section of the page, as HTML: each phase's share of the step with its floating-point
// operations and bytes, against the Roofline of the run's summary; what communication was exposed,
// and which rank is the slowest.
std::string roofline(const RunRecord& run);

}  // namespace troika::observe::report
