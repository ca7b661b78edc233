// Writes an input into a file, for code that reads files.
#pragma once

#include <filesystem>
#include <fstream>
#include <string_view>

namespace troika::fuzz {

// Does not sync the file to the disk, which would take most of a run's time.
inline void write_input(const std::filesystem::path& path, std::string_view input) {
  std::ofstream(path, std::ios::binary) << input;
}

}  // namespace troika::fuzz
