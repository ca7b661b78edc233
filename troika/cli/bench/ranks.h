// One rank of the benchmark: measures all variants of the plan alternately.
#pragma once

#include <filesystem>

#include "troika/cli/bench/plan.h"

namespace troika::cli::bench {

// Called on every rank that the launcher started. Rank 0 prints each row when it is measured, and
// writes all rows of this number of ranks to the file (see to_text() in report.h).
void measure_as_rank(const Plan& plan, const std::filesystem::path& rows_file);

}  // namespace troika::cli::bench
