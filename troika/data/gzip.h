// Whole files, compressed by gzip or not.
#pragma once

#include <filesystem>
#include <string>

namespace troika::data {

// The content, decompressed when the file starts as a gzip file does. Throws Error(usage) naming
// the file when it cannot be read or its compressed data is truncated or corrupt.
std::string read_maybe_gzip(const std::filesystem::path& path);

}  // namespace troika::data
