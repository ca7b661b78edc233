// Counts the bytes that this process reads from files.
#pragma once

#include <cstdint>
#include <string>

#include "troika/base/file.h"

namespace troika::checkpoint {

// Returns the bytes that this process has read from files so far.
inline int64_t bytes_read() {
  const std::string text = read_file("/proc/self/io");
  return std::stoll(text.substr(text.find(' ')));
}

}  // namespace troika::checkpoint
