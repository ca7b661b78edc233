// The section of the page about a pipeline's ranks.
#pragma once

#include <string>

#include "troika/observe/report/run_record.h"

namespace troika::observe::report {

// Lists the share of time in which each rank runs no pass, and draws the passes of one step if the
// run has a trace. Empty for a run without a pipeline.
std::string pipeline(const RunRecord& run);

}  // namespace troika::observe::report
