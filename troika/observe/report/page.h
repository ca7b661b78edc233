// The report page of a run.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "troika/base/config.h"
#include "troika/observe/report/run_record.h"

namespace troika::observe::report {

// Returns the options that a run's config.toml sets to non-default values. Throws Error for text
// that this version cannot read; the page then shows the error and the text.
using ChangedOptions = std::function<std::vector<config::Setting>(const std::string& toml)>;

// Reads a run's folder and writes report.html into it. The page needs no other file and no network.
// Returns its path. Throws the errors of read_run().
std::filesystem::path write_report(const std::filesystem::path& run_folder,
                                   const ChangedOptions& changed_options);

// Returns the page as HTML.
std::string make_page(const RunRecord& run, const ChangedOptions& changed_options);

}  // namespace troika::observe::report
