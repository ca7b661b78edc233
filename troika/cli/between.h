// Checks of numbers on the command line. The checks of CLI11 accept NaN.
#pragma once

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <string>

#include "troika/base/text.h"

namespace troika::cli {

// Accepts numbers from `least` to `most`.
inline CLI::Validator between(double least, double most) {
  const auto range = fmt::format("[{:g} - {:g}]", least, most);
  return {[=](const std::string& text) {
            const auto value = parse_double(text);
            const bool is_inside = value && *value >= least && *value <= most;
            return is_inside ? std::string() : fmt::format("Value {} not in range {}", text, range);
          },
          "FLOAT in " + range};
}

}  // namespace troika::cli
