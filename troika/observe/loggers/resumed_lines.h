// Selects the lines of a log that a resumed run keeps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "troika/observe/loggers/logger.h"

namespace troika::observe {

// Returns the lines of `text` that were logged before `position`. `text` is the content of `file`
// from line number `first` on. `step_of` returns the step of a line, or empty for a damaged line.
// Damaged lines are kept, with a warning that names file and line. Only a damaged and unterminated
// last line is dropped: a process killed while writing leaves it, and checkpoints are written only
// after the log is on disk.
std::vector<std::string> resumed_lines(
    const std::string& text, const std::filesystem::path& file, int64_t first,
    const LogPosition& position,
    const std::function<std::optional<int64_t>(const std::string&)>& step_of);

}  // namespace troika::observe
