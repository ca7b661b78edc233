// The page that shows a run to a person.
#pragma once

#include <filesystem>
#include <string>

#include "troika/train/report/run_record.h"

namespace troika::train::report {

// Reads a run's folder and writes report.html into it, a page that needs no other file and no
// network. Returns its path. Throws what read_run() throws.
std::filesystem::path write_report(const std::filesystem::path& run_folder);

// The page as HTML.
std::string make_page(const RunRecord& run);

}  // namespace troika::train::report
