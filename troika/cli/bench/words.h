// Parses arguments that several benchmarks share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troika/base/text.h"

namespace troika::cli::bench {

// Throw Error(bench, usage).
[[noreturn]] void refuse(const std::string& what, const std::string& got,
                         const std::string& expected, const std::string& hint = "");
[[noreturn]] void refuse_name(const std::string& what, const std::string& got,
                              const std::vector<std::string>& known);

// Parses "4K" and similar: a number of bytes from 1 to 4 GiB. Throws Error(bench, usage) otherwise.
int64_t bytes_from(const std::string& word);
// Throws Error(bench, usage) unless `min_time` is a valid time of a measurement.
double seconds_from(double min_time);

// Converts each element of a comma-separated list.
template <typename From>
auto each(const std::string& list, From&& from) {
  std::vector<decltype(from(list))> values;
  for (const auto& word : split(list, ',')) values.push_back(from(word));
  return values;
}

}  // namespace troika::cli::bench
