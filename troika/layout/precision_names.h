// The names of precisions in plans and profiles.
#pragma once

#include <array>
#include <string_view>

namespace troika::layout {

// nn::precision_names() has the same in the same order, and nn::NumericPrecision says what they
// mean.
inline constexpr std::array<std::string_view, 10> kPrecisionNames{
    "32",      "64",      "bf16-mixed", "16-mixed", "bf16-true",
    "16-true", "32-true", "64-true",    "bf16",     "16"};

}  // namespace troika::layout
