// The page that shows a run to a person.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "troika/base/config.h"
#include "troika/observe/report/run_record.h"

namespace troika::observe::report {

// Returns the options that a run's config.toml sets to other values than their defaults. Throws
// Error for a text that this version does not read; the page then shows that error and the text.
using ChangedOptions = std::function<std::vector<config::Table::Setting>(const std::string& toml)>;

// Reads a run's folder and writes report.html into it, a page that needs no other file and no
// network. Returns its path. Throws what read_run() throws.
std::filesystem::path write_report(const std::filesystem::path& run_folder,
                                   const ChangedOptions& changed_options);

// The page as HTML.
std::string make_page(const RunRecord& run, const ChangedOptions& changed_options);

}  // namespace troika::observe::report
