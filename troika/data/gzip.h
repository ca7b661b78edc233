// Reading of whole files that may be compressed by gzip.
#pragma once

#include <filesystem>
#include <string>

namespace troika::data {

// Returns the content, decompressed if the file starts like a gzip file. Throws Error(usage) naming
// the file if it cannot be read or its compressed data is truncated or corrupt.
std::string read_maybe_gzip(const std::filesystem::path& path);

}  // namespace troika::data
