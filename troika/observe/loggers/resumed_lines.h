// The lines of a log that stay when its run goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "troika/observe/loggers/logger.h"

namespace troika::observe {

// The lines of `text`, the content of `file` from line number `first` on, that were logged before
// `position`. `step_of` gives the step of a line, or nothing for a damaged one. Damaged lines stay:
// a warning names file and line. Only a damaged last line without its end goes, because a kill
// during a write leaves such a line, and a checkpoint is written after the log is on the disk.
std::vector<std::string> resumed_lines(
    const std::string& text, const std::filesystem::path& file, int64_t first,
    const LogPosition& position,
    const std::function<std::optional<int64_t>(const std::string&)>& step_of);

}  // namespace troika::observe
